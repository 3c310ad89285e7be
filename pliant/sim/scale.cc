#include "pliant/sim/scale.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "pliant/membership/roster.h"
#include "pliant/runtime/herald.h"
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

RosterOptions large_options(uint32_t members) {
  RosterOptions options;
  for (uint32_t host = 0; host * kSlots < members; ++host)
    options.hosts.push_back({fmt::format("host{}", host), kSlots});
  options.initial = members;
  options.max = members;
  options.heartbeat = std::chrono::hours(1000);  // nobody beats here
  return options;
}

// The coordinator's decisions, without its sockets.
class LargeJob final {
 public:
  // What one change took.
  struct Cost {
    uint32_t views = 0;
    double messages = 0;
    double bytes = 0;
    double reports_us = 0;
    double decide_us = 0;
    double encode_us = 0;
    double log_bytes = 0;
    double log_us = 0;
    double cpu_us() const { return reports_us + decide_us + encode_us + log_us; }
  };

  explicit LargeJob(uint32_t members) : roster_(large_options(members), now_) {
    for (uint32_t host = 0; host < roster_.options().hosts.size(); ++host)
      roster_.handle(RosterEvent::HostReady{host}, now_);
    for (const RosterAction::Any& action : roster_.decide(now_))
      if (const auto* start = std::get_if<RosterAction::Start>(&action)) join(start->peer);
    settle();
  }

  const View& view() const { return roster_.view(); }
  void wait(Duration time) { now_ += time; }
  void grow() {
    (void)roster_.resize(static_cast<uint32_t>(view().size()) + 1, now_);
    settle();
  }
  std::optional<PeerId> take_started() { return std::exchange(started_, std::nullopt); }
  Cost take_cost() { return std::exchange(cost_, {}); }

  // A member dies, and every other reports it: the most that a coordinator hears about a loss.
  void lose(PeerId victim) {
    const double began = cpu_us();
    for (const Member& member : view().members)
      if (member.id != victim)
        roster_.handle(RosterEvent::Suspected{member.id, victim, "the connection was closed"},
                       now_);
    cost_.reports_us += cpu_us() - began;
    roster_.handle(RosterEvent::Died{victim}, now_);
    settle();
  }
  void end(PeerId victim) {
    roster_.handle(RosterEvent::Exited{.peer = victim, .pid = 0, .exit_code = 137, .reason = ""},
                   now_);
    settle();
  }
  void join(PeerId peer) {
    herald_.joined(peer, 0);
    roster_.handle(RosterEvent::Joined{member_of(peer), 0}, now_);
  }
  void meet(PeerId peer) {
    RosterEvent::Met met{peer, {}};
    for (const Member& member : view().members) met.peers.push_back(member.id);
    roster_.handle(met, now_);
  }
  void settle() {
    double mark = cpu_us();
    const auto lap = [&](double& sum) {
      const double at = cpu_us();
      sum += at - std::exchange(mark, at);
    };
    const std::vector<RosterAction::Any> actions = roster_.decide(now_);
    (void)roster_.next_deadline();
    lap(cost_.decide_us);
    cost_.log_bytes += static_cast<double>(roster_.snapshot().size());
    lap(cost_.log_us);
    for (const RosterAction::Any& action : actions) perform(action);
    lap(cost_.encode_us);
  }

 private:
  void perform(const RosterAction::Any& action) {
    if (const auto* publish = std::get_if<RosterAction::Publish>(&action)) {
      ++cost_.views;
      for (const auto& telling : herald_.tell(publish->view, publish->gone, publish->to))
        send(telling.to, telling.message);
    } else if (const auto* meet = std::get_if<RosterAction::Meet>(&action)) {
      send(meet->to, Meet{meet->members});
    } else if (const auto* start = std::get_if<RosterAction::Start>(&action)) {
      started_ = start->peer;
    }
  }
  void send(const std::vector<PeerId>& to, const Message& message) {
    cost_.messages += static_cast<double>(to.size());
    cost_.bytes +=
        static_cast<double>(to.size()) * static_cast<double>(encode_message(message).size());
  }

  Instant now_{std::chrono::hours(1)};
  Roster roster_;
  Herald herald_;
  std::optional<PeerId> started_;
  Cost cost_;
};

void measure_failures(LargeJob& job, const ScaleOptions& options, ScaleResult& result) {
  Prng prng(options.seed);
  LargeJob::Cost all;
  for (uint32_t i = 0; i < options.failures && job.view().size() > 1; ++i) {
    job.wait(std::chrono::milliseconds(1));
    const auto rank = static_cast<Rank>(prng.below(static_cast<uint64_t>(job.view().size())));
    const PeerId victim = job.view().at(rank).id;
    (void)job.take_cost();
    job.lose(victim);
    const LargeJob::Cost cost = job.take_cost();
    job.end(victim);
    ++result.failures;
    all.views += cost.views;
    all.messages += cost.messages;
    all.bytes += cost.bytes;
    all.reports_us += cost.reports_us;
    all.decide_us += cost.decide_us;
    all.encode_us += cost.encode_us;
    all.log_bytes += cost.log_bytes;
    all.log_us += cost.log_us;
  }
  const double changes = std::max<double>(1, all.views);
  result.changes = all.views;
  result.messages_per_change = all.messages / changes;
  result.bytes_per_change = all.bytes / changes;
  result.bytes_per_message = all.messages > 0 ? all.bytes / all.messages : 0;
  result.reports_us_per_change = all.reports_us / changes;
  result.cpu_us_per_change = all.decide_us / changes;
  result.encode_us_per_change = all.encode_us / changes;
  result.log_bytes_per_change = all.log_bytes / changes;
  result.log_us_per_change = all.log_us / changes;
}

// One newcomer at a time, from its start to the view that includes it.
void measure_joins(LargeJob& job, uint32_t joins, ScaleResult& result) {
  job.wait(std::chrono::hours(1));  // nothing rests from its failures any more
  (void)job.take_cost();
  for (uint32_t i = 0; i < joins; ++i) {
    job.grow();
    const auto newcomer = job.take_started();
    if (!newcomer) break;
    job.join(*newcomer);
    job.settle();
    job.meet(*newcomer);
    job.settle();
    if (job.view().rank_of(*newcomer) < 0) break;
    ++result.joins;
  }
  const LargeJob::Cost cost = job.take_cost();
  const double count = std::max<double>(1, result.joins);
  result.messages_per_join = cost.messages / count;
  result.bytes_per_join = cost.bytes / count;
  result.cpu_us_per_join = cost.cpu_us() / count;
}

}  // namespace

ScaleResult run_scale(const ScaleOptions& options) {
  LargeJob job(options.members);
  ScaleResult result;
  result.members = static_cast<uint32_t>(job.view().size());
  measure_failures(job, options, result);
  measure_joins(job, std::max<uint32_t>(1, result.failures / 20), result);
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
                    {"reports_us_per_change", result.reports_us_per_change},
                    {"cpu_us_per_change", result.cpu_us_per_change},
                    {"encode_us_per_change", result.encode_us_per_change},
                    {"log_bytes_per_change", result.log_bytes_per_change},
                    {"log_us_per_change", result.log_us_per_change},
                    {"joins", result.joins},
                    {"messages_per_join", result.messages_per_join},
                    {"bytes_per_join", result.bytes_per_join},
                    {"cpu_us_per_join", result.cpu_us_per_join}});
  return list.dump();
}

}  // namespace pliant::sim
