#include "pliant/training/monitor_note.h"

#include <algorithm>

namespace pliant {
namespace {

constexpr uint32_t kMagic = 0x504c5347;
constexpr size_t kTopologyBytesMax = size_t{1} << 20;

// The fields in their order, once for both directions.
template <typename Each, typename S>
void fields(Each& each, S& signals) {
  each(signals.step);
  each(signals.data_epoch);
  each(signals.samples_committed);
  each(signals.view);
  each(signals.members);
  each(signals.hosts);
  each(signals.members_lost);
  each(signals.batch);
  each(signals.reduced_bytes);
  each(signals.step_seconds);
  each(signals.samples_per_second);
  each(signals.compute_seconds);
  each(signals.wait_seconds);
  each(signals.change_seconds);
  each(signals.loss);
  each(signals.synchronisation);
}

void put_peer(Writer& writer, PeerId peer) { writer.put(peer.packed()); }
PeerId take_peer(Reader& reader) { return PeerId::unpack(reader.take<uint64_t>()); }

void put(Writer& writer, const MemberSignals& member) {
  put_peer(writer, member.peer);
  writer.put(member.compute_seconds);
  writer.put(member.wait_seconds);
}

void put(Writer& writer, const LinkSignals& link) {
  writer.put(link.from_host);
  writer.put(link.to_host);
  writer.put(link.latency_seconds);
  writer.put(link.bytes_per_second);
}

void take(Reader& reader, MemberSignals& member) {
  member.peer = take_peer(reader);
  member.compute_seconds = reader.take<double>();
  member.wait_seconds = reader.take<double>();
}

void take(Reader& reader, LinkSignals& link) {
  link.from_host = reader.take<uint32_t>();
  link.to_host = reader.take<uint32_t>();
  link.latency_seconds = reader.take<double>();
  link.bytes_per_second = reader.take<double>();
}

template <typename T>
void put_all(Writer& writer, const std::vector<T>& all) {
  writer.put(static_cast<uint32_t>(all.size()));
  for (const T& one : all) put(writer, one);
}

// Grows as it reads, so that a wrong count cannot make it allocate more than is there.
template <typename T>
void take_all(Reader& reader, std::vector<T>& all) {
  const auto count = reader.take<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) take(reader, all.emplace_back());
}

}  // namespace

std::vector<std::byte> encode(const Signals& signals) {
  Writer writer;
  writer.put(kMagic);
  const auto each = [&](const auto& value) { writer.put(value); };
  fields(each, signals);
  writer.put_string(signals.topology);
  writer.put(static_cast<uint8_t>(signals.noise ? 1 : 0));
  if (signals.noise) {
    writer.put(signals.noise->scale);
    writer.put(signals.noise->variance);
    writer.put(signals.noise->squared_norm);
  }
  writer.put(static_cast<uint8_t>(signals.straggler ? 1 : 0));
  if (signals.straggler) {
    writer.put(signals.straggler->rank);
    put_peer(writer, signals.straggler->peer);
    writer.put(signals.straggler->slowdown);
  }
  writer.put(static_cast<uint8_t>(signals.nonfinite ? 1 : 0));
  if (signals.nonfinite) {
    writer.put(signals.nonfinite->rank);
    put_peer(writer, signals.nonfinite->peer);
    writer.put(signals.nonfinite->tensor);
  }
  put_all(writer, signals.by_rank);
  put_all(writer, signals.links);
  return writer.bytes();
}

Result<Signals> decode_signals(Bytes bytes) {
  Reader reader(bytes);
  Signals signals;
  if (reader.take<uint32_t>() != kMagic) return invalid("these are no signals");
  const auto each = [&](auto& value) { value = reader.take<std::decay_t<decltype(value)>>(); };
  fields(each, signals);
  signals.topology = reader.take_string(kTopologyBytesMax);
  if (reader.take<uint8_t>() != 0) {
    GradientNoise& noise = signals.noise.emplace();
    noise.scale = reader.take<double>();
    noise.variance = reader.take<double>();
    noise.squared_norm = reader.take<double>();
  }
  if (reader.take<uint8_t>() != 0) {
    Straggler& straggler = signals.straggler.emplace();
    straggler.rank = reader.take<Rank>();
    straggler.peer = take_peer(reader);
    straggler.slowdown = reader.take<double>();
  }
  if (reader.take<uint8_t>() != 0) {
    Nonfinite& nonfinite = signals.nonfinite.emplace();
    nonfinite.rank = reader.take<Rank>();
    nonfinite.peer = take_peer(reader);
    nonfinite.tensor = reader.take<int>();
  }
  take_all(reader, signals.by_rank);
  take_all(reader, signals.links);
  // What has another encoding was not made by one.
  const bool known = signals.synchronisation <= Synchronisation::kPairAveraging;
  if (!reader.finished() || !known || !std::ranges::equal(encode(signals), bytes))
    return invalid("the signals cannot be read");
  return signals;
}

}  // namespace pliant
