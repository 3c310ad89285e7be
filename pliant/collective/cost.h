// The cost model behind `auto`: what a collective would take under each strategy, from measured
// latencies and bandwidths. Pure; any thread.
//
// Every rank chooses for itself and all must choose alike, so a choice depends only on values that
// all ranks share: the signature, the group without its `self`, and one model that rank 0 hands out
// in encoded form. docs/STRATEGIES.md explains the formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/collective/group.h"
#include "pliant/collective/strategy.h"

namespace pliant {

// One way.
struct LinkCost {
  double latency_s = 40e-6;
  double bytes_per_s = 1.18e9;  // a 10 Gbit/s network

  bool operator==(const LinkCost&) const = default;
};

// What was measured, or defaults that rank strategies sensibly until something is.
struct CostModel {
  // Messages between two processes of one host: the way of a message that both are waiting for, and
  // what a process sends or receives by itself.
  LinkCost inside{.latency_s = 2e-6, .bytes_per_s = 5e9};
  int cores = 1;  // processes of one host that can really move bytes at once
  // By the numbers of hosts (PeerId::host), from and to. Others cost `default_between`.
  std::map<std::pair<uint32_t, uint32_t>, LinkCost> between;
  LinkCost default_between;
  double memory_bytes_per_s = 40e9;  // reads and writes together, all cores of a host
  bool shared_memory = true;         // the members of a host reach each other's memory

  bool operator==(const CostModel&) const = default;
};

struct Choice {
  Strategy strategy;
  size_t chunk_bytes = 0;
  double predicted_s = 0;
  // "hierarchical:ring: 16 MiB over 4 hosts, predicted 3.10 ms (next best hierarchical:star@1
  // 4.00 ms)". The next best is one of another kind; a link that is much slower than others is
  // named.
  std::string reason;
};

// The strategy with the least predicted time among those that suit the collective; of equals, the
// first in the order of docs/STRATEGIES.md. group.self matters for the predicted time of send and
// receive alone.
Choice choose(const Signature& signature, const Group& group, const CostModel& model);

// The strategies that choose() compares, in order of preference; at least one.
std::vector<Strategy> candidates(const Signature& signature, const Group& group,
                                 const CostModel& model);

// Seconds until the last rank has its result. `strategy` is not auto and was checked.
double predict(const Signature& signature, const Group& group, const Strategy& strategy,
               size_t chunk_bytes, const CostModel& model);

// The size of the chunks in which blocks are pipelined; a multiple of 64.
size_t chunk_bytes_for(const Signature& signature, const Group& group, const Strategy& strategy,
                       int cores);

// Chunks, cores and bytes in flight for a strategy.
CallPlan call_plan(const Signature& signature, const Group& group, const Strategy& strategy,
                   const CostModel& model);

// The bytes of all blocks together, each counted once.
size_t total_bytes(const Signature& signature, const Group& group);

// One encoding a model; the decoder rejects whatever could make a prediction meaningless (a rate of
// zero, not-a-number, no core).
std::vector<std::byte> encode(const CostModel& model);
Result<CostModel> decode_cost_model(Bytes bytes);

// One measured message: its bytes, and its seconds one way.
using LinkSample = std::pair<size_t, double>;

// Latency and bandwidth from samples of a few sizes, several of each. A minority of disturbed
// samples changes nothing, and large messages decide the bandwidth: small ones may pass a rate
// limiter unhindered. Without usable samples: `otherwise`.
LinkCost fit_link(std::span<const LinkSample> samples, const LinkCost& otherwise = {});

}  // namespace pliant
