// A Schedule: one rank's part of a collective, written as data. Pure values; any thread.
//
// The tensor is cut into blocks; every rank of the group has the same blocks, with its own steps in
// each. A block is cut further into chunks; block and chunk make a lane. Lanes are independent of
// each other: that is what is pipelined. The steps of a lane run in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/collective/group.h"
#include "pliant/collective/operation.h"

namespace pliant {

// Which message of a lane: a partial result on its way up, or a result on its way down.
enum class Phase : uint8_t { kUp = 0, kDown = 1 };

enum class Buffer : uint8_t {
  kInput,    // the caller's input
  kPartial,  // the lane's own: an unfinished result, in the accumulator type
  kOutput,   // the caller's output
};

struct Action {
  enum class Kind : uint8_t {
    kReduce,       // receive from `peers` (kUp); into = own (`from`) op those, in order; `ordered`:
                   // the own one stands among them by rank
    kReceive,      // receive from peers[0] (kDown) into the output
    kSend,         // send `from` to each of `peers`
    kCopy,         // output = input, both this rank's
    kHostReduce,   // shared memory: the host's contributions are reduced by one of its members
    kHostDeliver,  // shared memory: the result reaches the host's members
  };
  Kind kind;
  Phase phase = Phase::kUp;
  Buffer from = Buffer::kInput;
  Buffer into = Buffer::kPartial;  // kOutput: finished (mean divided, rounded)
  std::vector<Rank> peers;
  bool ordered = false;
  // kReduce: the peers whose message is a partial result rather than their plain input.
  std::vector<bool> partial;
};

// What happens to a block among the members of one host; see host.h.
struct HostPart {
  static constexpr Rank kAnyone = -1;
  static constexpr Rank kEveryone = -2;
  bool reduce = false;     // true: all members contribute; false: only the reducer does
  Rank reducer = kAnyone;  // who reduces or hands out: fixed, or whoever comes first
  Rank receiver = kEveryone;
};

struct Block {
  size_t input_offset = 0;  // elements; where the block stands in a contributor's input
  size_t output_offset = 0;
  size_t count = 0;
  HostPart host;
  std::vector<Action> steps;  // this rank's; empty: it takes no part
};

struct Schedule {
  std::vector<Block> blocks;
  size_t chunk_elements = 1;  // a block's chunks have this many elements, the last one fewer
  size_t chunks = 0;          // of the longest block
  bool on_host = false;       // has kHost steps
  size_t in_flight = 1;       // lanes that a rank works on at once
  // on_host: members of a host that can work at once. Each has lanes that it begins with.
  size_t workers = 1;

  size_t lanes() const { return blocks.size() * chunks; }
};

struct LaneRange {
  size_t block = 0;
  size_t offset = 0;  // elements from the block's start
  size_t count = 0;   // 0: the block is shorter; no rank does anything
};
LaneRange range_of(const Schedule& schedule, size_t lane);

// Splits `count` elements into `parts` ranges whose sizes differ by at most one.
struct Split {
  size_t offset = 0;
  size_t count = 0;
};
Split split(size_t count, size_t parts, size_t index);

}  // namespace pliant
