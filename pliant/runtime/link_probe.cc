#include "pliant/runtime/link_probe.h"

#include <algorithm>
#include <array>
#include <vector>

namespace pliant {
namespace {

// The small probes find the latency; the large ones outlast what a rate limiter lets through in a
// burst, and are repeated so that one hiccup does not count.
constexpr std::array<size_t, 8> kProbeBytes = {64,        64,        64,      64 << 10,
                                               512 << 10, 512 << 10, 1 << 20, 1 << 20};

// Sends `bytes` to the peer and awaits its answer, or the other way round.
Status exchange(Session& session, Rank peer, Collective first, std::vector<std::byte>& buffer,
                size_t bytes) {
  std::array<std::byte, 1> answer{};
  const auto one = [&](Collective collective, std::byte* data, size_t count) {
    Operation operation;
    operation.collective = collective;
    operation.name = "pliant/probe";
    operation.input = data;
    operation.output = data;
    operation.count = count;
    operation.dtype = DType::kU8;
    operation.root = peer;
    return session.run(operation);
  };
  if (first == Collective::kSend) {
    PLIANT_TRY(one(Collective::kSend, buffer.data(), bytes));
    return one(Collective::kReceive, answer.data(), 1);
  }
  PLIANT_TRY(one(Collective::kReceive, buffer.data(), bytes));
  return one(Collective::kSend, answer.data(), 1);
}

Result<LinkCost> probe(Session& session, Rank peer) {
  std::vector<std::byte> buffer(*std::max_element(kProbeBytes.begin(), kProbeBytes.end()));
  std::vector<LinkSample> samples;
  double answer_s = 0;
  PLIANT_TRY(exchange(session, peer, Collective::kSend, buffer, 1));  // opens the connections
  for (const size_t bytes : kProbeBytes) {
    const Instant start = now();
    PLIANT_TRY(exchange(session, peer, Collective::kSend, buffer, bytes));
    const double round_s = seconds(now() - start);
    // Half of a small round trip is the way of the answer.
    if (bytes == kProbeBytes[0])
      answer_s = answer_s == 0 ? round_s / 2 : std::min(answer_s, round_s / 2);
    samples.push_back({bytes, std::max(round_s - answer_s, round_s / 2)});
  }
  return fit_link(samples);
}

Status be_probed(Session& session, Rank peer) {
  std::vector<std::byte> buffer(*std::max_element(kProbeBytes.begin(), kProbeBytes.end()));
  PLIANT_TRY(exchange(session, peer, Collective::kReceive, buffer, 1));
  for (const size_t bytes : kProbeBytes)
    PLIANT_TRY(exchange(session, peer, Collective::kReceive, buffer, bytes));
  return {};
}

}  // namespace

Result<std::map<std::pair<uint32_t, uint32_t>, LinkCost>> probe_links(Session& session) {
  const Group& world = session.world();
  std::vector<Rank> first_of_host(static_cast<size_t>(world.hosts), -1);
  for (Rank rank = world.size() - 1; rank >= 0; --rank)
    first_of_host[static_cast<size_t>(world.host(rank))] = rank;

  const size_t hosts = first_of_host.size();
  std::vector<double> measured(hosts * hosts * 2, 0.0);
  PLIANT_TRY(session.barrier("pliant/probe/begin"));
  for (size_t from = 0; from < hosts; ++from) {
    for (size_t to = 0; to < hosts; ++to) {
      if (from == to) continue;
      if (world.self == first_of_host[to]) PLIANT_TRY(be_probed(session, first_of_host[from]));
      if (world.self != first_of_host[from]) continue;
      auto cost = probe(session, first_of_host[to]);
      if (!cost) return cost.error();
      measured[(from * hosts + to) * 2] = cost->latency_s;
      measured[(from * hosts + to) * 2 + 1] = cost->bytes_per_s;
    }
  }
  // Each entry was measured by one member: the sum is the whole table, the same bits everywhere.
  PLIANT_TRY(session.all_reduce("pliant/probe/table", measured.data(), measured.data(),
                                measured.size(), DType::kF64, Op::kSum));
  std::map<std::pair<uint32_t, uint32_t>, LinkCost> between;
  for (size_t from = 0; from < hosts; ++from)
    for (size_t to = 0; to < hosts; ++to)
      if (from != to)
        between[{world.peer(first_of_host[from]).host, world.peer(first_of_host[to]).host}] = {
            measured[(from * hosts + to) * 2], measured[(from * hosts + to) * 2 + 1]};
  return between;
}

}  // namespace pliant
