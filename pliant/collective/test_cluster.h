// A job inside one process, for tests: N executors over a FakeNetwork and real shared memory.
//
// Everything runs on the caller's thread. Time stands still unless the test moves it. A step lets
// every rank poll its transport and advance its calls once, in the order of ranks or, with
// shuffle(), in an order drawn from a seed.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pliant/collective/executor.h"
#include "pliant/transport/fake.h"

namespace pliant {

inline CallPlan plan_of(std::string_view strategy, size_t chunk_bytes = 64, int cores = 1) {
  auto parsed = parse_strategy(strategy);
  PLIANT_CHECK(parsed.ok(), "a test names a strategy that exists");
  return {.strategy = *parsed, .chunk_bytes = chunk_bytes, .cores = cores};
}

class TestCluster final {
 public:
  struct Options {
    std::vector<uint32_t> hosts = {0, 0};  // of each rank
    CallPlan plan = plan_of("star");
    FakeNetwork::Taking taking = FakeNetwork::Taking::kOnArrival;
    Duration timeout = std::chrono::seconds(10);
    size_t heap_bytes = size_t{64} << 20;
    bool shared_memory = true;
  };

  explicit TestCluster(const Options& options) : options_(options), network_(options.taking) {
    std::vector<uint16_t> slots(256, 0);
    for (const uint32_t host : options.hosts) peers_.push_back({host, slots[host]++, 1});
    for (size_t i = 0; i < peers_.size(); ++i) ranks_.push_back(std::make_unique<Process>());
    for (size_t i = 0; i < peers_.size(); ++i) start(static_cast<Rank>(i));
  }
  ~TestCluster() {
    for (auto& process : ranks_) end(*process);
  }
  TestCluster(const TestCluster&) = delete;
  TestCluster& operator=(const TestCluster&) = delete;

  Rank size() const { return static_cast<Rank>(peers_.size()); }
  PeerId peer(Rank rank) const { return peers_[static_cast<size_t>(rank)]; }
  const Group& world(Rank rank) const { return process(rank).world; }
  Executor& executor(Rank rank) { return *process(rank).executor; }
  Segment& segment(Rank rank) { return *process(rank).segment; }
  FakeNetwork& network() { return network_; }
  // What ranks have left to other threads, which run it only now.
  void run_tasks() {
    for (const auto& task : std::exchange(tasks_, {})) task();
  }
  // Whom ranks have woken because its segment says that it sleeps.
  const std::vector<PeerId>& woken() const { return woken_; }
  Instant now() const { return now_; }

  // A group of some ranks of the world, as one of them sees it.
  Group group(std::span<const Rank> members, Rank self) const {
    std::vector<PeerId> ids;
    for (const Rank rank : members) ids.push_back(peer(rank));
    return make_group(ids, peer(self), process(self).epoch);
  }
  // One rank goes on to a view of the same members, whose calls of the former one are over.
  void install(Rank rank, Epoch epoch) { install(rank, epoch, Gone{}); }
  // The same, without those that have ended, or that may still run.
  struct Gone {
    std::vector<Rank> ended = {};
    std::vector<Rank> at_large = {};
  };
  void install(Rank rank, Epoch epoch, const Gone& gone) {
    std::vector<PeerId> members = peers_;
    std::vector<PeerId> at_large;
    for (const Rank other : gone.at_large) at_large.push_back(peer(other));
    for (const PeerId other : at_large) std::erase(members, other);
    for (const Rank other : gone.ended) std::erase(members, peer(other));
    process(rank).epoch = epoch;
    process(rank).world = make_group(members, peer(rank), epoch);
    std::erase(members, peer(rank));
    executor(rank).install(epoch, {.at_large = at_large, .members = members});
  }
  // Nobody has the memory of a dead rank mapped any more.
  void drop_segment(Rank rank) { process(rank).segment.reset(); }

  // How later calls run; on every rank, or on one alone, which is a mistake to be found.
  void set_plan(const CallPlan& plan) {
    for (Rank rank = 0; rank < size(); ++rank) set_plan(rank, plan);
  }
  void set_plan(Rank rank, const CallPlan& plan) {
    process(rank).plan = plan;
    executor(rank).forget_plans();
  }

  // From now on ranks take turns in an order drawn from the seed, and streams overtake each other.
  void shuffle(uint64_t seed) {
    prng_.emplace(seed);
    network_.reorder(seed);
  }

  // The order in which ranks do something.
  std::vector<Rank> order() {
    std::vector<Rank> ranks(static_cast<size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (prng_)  // not std::shuffle, which differs between libraries
      for (size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[(*prng_)() % i]);
    return ranks;
  }

  // A rank that does not take turns: busy elsewhere, stopped or killed.
  void pause(Rank rank) { process(rank).paused = true; }
  void resume(Rank rank) { process(rank).paused = false; }
  // Killed: its messages are gone, its memory stays mapped. The others are told only if `told`.
  void kill(Rank rank) {
    pause(rank);
    network_.drop(peer(rank));
  }
  // An orderly end: good-bye, then the connections close.
  void leave(Rank rank) {
    std::vector<PeerId> others;
    for (const PeerId id : peers_)
      if (id != peer(rank)) others.push_back(id);
    executor(rank).say_goodbye(others);
    for (int i = 0; i < 100 && !executor(rank).goodbye_said(); ++i) step();
    EXPECT_TRUE(executor(rank).goodbye_said());
    end(process(rank));
  }

  bool step() {
    bool any = false;
    for (const Rank rank : order()) {
      Process& one = process(rank);
      if (one.paused || one.executor == nullptr) continue;
      any |= one.transport->poll();
      any |= one.executor->advance_all(now_);
    }
    return any;
  }
  // Steps until `done`, at most a bounded number of times; false if it is not done then.
  template <typename Done>
  bool run_until(Done done) {
    for (int idle = 0, steps = 0; !done(); ++steps) {
      // With nothing moving and time standing still, nothing will.
      idle = step() ? 0 : idle + 1;
      if (idle > 3 || steps > kStepsMax) return done();
    }
    return true;
  }
  void pass(Duration time) { now_ += time; }

  static constexpr Epoch kEpoch = Epoch{1};

 private:
  static constexpr int kStepsMax = 1'000'000;

  // The executor needs its transport and the transport its sink.
  struct Inbox final : public Sink {
    Executor* executor = nullptr;
    Result<std::byte*> place(PeerId from, const Frame& frame) override {
      return executor->place(from, frame);
    }
    void arrived(PeerId from, const Frame& frame, std::byte* payload) override {
      executor->arrived(from, frame, payload);
    }
    void sent(uint64_t cookie) override { executor->sent(cookie); }
    void lost(PeerId peer, const Error& error) override { executor->lost(peer, error); }
  };
  struct Process {
    Group world;
    Epoch epoch = kEpoch;
    CallPlan plan;
    Inbox inbox;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Segment> segment;
    std::unique_ptr<HostExchange> host;
    std::unique_ptr<Executor> executor;
    bool paused = false;
  };

  Process& process(Rank rank) { return *ranks_[static_cast<size_t>(rank)]; }
  const Process& process(Rank rank) const { return *ranks_[static_cast<size_t>(rank)]; }

  void start(Rank rank) {
    Process& one = process(rank);
    one.world = make_group(peers_, peer(rank), kEpoch);
    one.plan = options_.plan;
    one.transport = network_.open(peer(rank), one.inbox);
    for (const PeerId id : peers_) {
      Member member;
      member.id = id;
      if (id != peer(rank)) one.transport->add_peer(member);
    }
    if (options_.shared_memory) {
      auto segment = Segment::create(options_.heap_bytes);
      PLIANT_CHECK(segment.ok(), "tests need shared memory");
      one.segment = std::move(*segment);
      one.host = std::make_unique<HostExchange>(
          HostMemory{.own = one.segment.get(),
                     .segment_of = [this](PeerId id) { return segment_of(id); },
                     .wake = [this](PeerId id) { woken_.push_back(id); },
                     .aside =
                         [this](auto task) {
                           tasks_.push_back(std::move(task));
                           return true;
                         }});
    }
    one.executor = std::make_unique<Executor>(
        *one.transport, one.host.get(),
        Executor::Options{.self = peer(rank),
                          .epoch = kEpoch,
                          .timeout = options_.timeout,
                          .plan = [&one](const Signature&, const Group&) { return one.plan; },
                          .describe = [this](PeerId id) { return describe(id); }});
    one.inbox.executor = one.executor.get();
  }
  // The segment stays: peers have it mapped.
  static void end(Process& one) {
    one.transport.reset();
    one.executor.reset();
  }
  Segment* segment_of(PeerId id) {
    for (Rank rank = 0; rank < size(); ++rank)
      if (peer(rank) == id) return process(rank).segment.get();
    return nullptr;
  }
  std::string describe(PeerId id) const {
    const auto at = std::find(peers_.begin(), peers_.end(), id);
    return fmt::format("rank {}", at - peers_.begin());
  }

  const Options options_;
  FakeNetwork network_;
  std::vector<PeerId> woken_;
  std::vector<std::function<void()>> tasks_;
  std::vector<PeerId> peers_;
  std::vector<std::unique_ptr<Process>> ranks_;
  Instant now_{std::chrono::hours(1)};
  std::optional<std::mt19937_64> prng_;
};

}  // namespace pliant
