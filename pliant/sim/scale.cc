#include "pliant/sim/scale.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pliant/membership/roster.h"
#include "pliant/runtime/control.h"
#include "pliant/sim/prng.h"

namespace pliant::sim {
namespace {

constexpr uint16_t kSlots = 8;  // of a host

double cpu_us() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) * 1e6 + static_cast<double>(spent.tv_nsec) / 1e3;
}

Member member_of(PeerId peer) {
  return {.id = peer,
          .pid = 4000 + peer.slot,
          .host = fmt::format("host{}", peer.host),
          .address = "10.0.0.1",
          .port = 40000,
          .local_name = fmt::format("pliant-{}-{}", peer.host, peer.slot)};
}

Roster large_roster(uint32_t members, Instant now) {
  RosterOptions options;
  for (uint32_t host = 0; host * kSlots < members; ++host)
    options.hosts.push_back({fmt::format("host{}", host), kSlots});
  options.initial = members;
  options.max = members;
  Roster roster(options, now);
  for (uint32_t host = 0; host < options.hosts.size(); ++host)
    roster.handle(RosterEvent::HostReady{host}, now);
  for (const RosterAction::Any& action : roster.decide(now))
    if (const auto* start = std::get_if<RosterAction::Start>(&action))
      roster.handle(RosterEvent::Joined{member_of(start->peer), 0}, now);
  roster.decide(now);
  return roster;
}

}  // namespace

ScaleResult run_scale(const ScaleOptions& options) {
  Prng prng(options.seed);
  Instant now{std::chrono::hours(1)};
  Roster roster = large_roster(options.members, now);
  ScaleResult result;
  result.members = static_cast<uint32_t>(roster.view().size());
  double messages = 0;
  double bytes = 0;
  double cpu = 0;
  double encode = 0;
  for (uint32_t i = 0; i < options.failures && roster.view().size() > 1; ++i) {
    now += std::chrono::milliseconds(1);
    const auto rank = static_cast<Rank>(prng.below(static_cast<uint64_t>(roster.view().size())));
    const PeerId victim = roster.view().at(rank).id;
    const double began = cpu_us();
    roster.handle(RosterEvent::Died{victim}, now);
    const std::vector<RosterAction::Any> actions = roster.decide(now);
    cpu += cpu_us() - began;
    ++result.failures;
    for (const RosterAction::Any& action : actions) {
      const auto* const publish = std::get_if<RosterAction::Publish>(&action);
      if (publish == nullptr) continue;
      const double encoding = cpu_us();
      const size_t size = encode_message(ViewDecided{publish->view, publish->gone}).size();
      encode += cpu_us() - encoding;
      ++result.changes;
      messages += static_cast<double>(publish->to.size());
      bytes += static_cast<double>(publish->to.size()) * static_cast<double>(size);
    }
    roster.handle(RosterEvent::Exited{.peer = victim, .pid = 0, .exit_code = 137, .reason = ""},
                  now);
    roster.decide(now);
  }
  const double changes = std::max<double>(1, result.changes);
  result.messages_per_change = messages / changes;
  result.bytes_per_change = bytes / changes;
  result.bytes_per_message = messages > 0 ? bytes / messages : 0;
  result.cpu_us_per_change = cpu / changes;
  result.encode_us_per_change = encode / changes;
  return result;
}

std::vector<ScaleResult> run_scales(const ScaleOptions& options) {
  std::vector<ScaleResult> results;
  for (const uint32_t part : {8u, 4u, 2u, 1u}) {
    ScaleOptions smaller = options;
    smaller.members = std::max<uint32_t>(2, options.members / part);
    smaller.failures = std::max<uint32_t>(1, options.failures / part);
    results.push_back(run_scale(smaller));
  }
  return results;
}

std::string to_json(const std::vector<ScaleResult>& results) {
  nlohmann::json list = nlohmann::json::array();
  for (const ScaleResult& result : results)
    list.push_back({{"members", result.members},
                    {"failures", result.failures},
                    {"changes", result.changes},
                    {"messages_per_change", result.messages_per_change},
                    {"bytes_per_message", result.bytes_per_message},
                    {"bytes_per_change", result.bytes_per_change},
                    {"cpu_us_per_change", result.cpu_us_per_change},
                    {"encode_us_per_change", result.encode_us_per_change}});
  return list.dump();
}

}  // namespace pliant::sim
