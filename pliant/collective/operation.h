// One call of a collective, as its caller states it. A value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pliant/base/ids.h"
#include "pliant/collective/op.h"

namespace pliant {

// The numbers are part of the wire format.
enum class Collective : uint8_t {
  kAllReduce = 0,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
};
inline constexpr int kCollectives = 11;
const char* to_string(Collective collective);

// True if only two ranks take part, whatever the size of the group.
inline bool is_pair(Collective collective) {
  return collective == Collective::kSend || collective == Collective::kReceive;
}

// "all_reduce of 12 x f32 sum (root 0)": a call in a message to people. The numbers come from other
// processes and may be anything.
std::string describe_call(uint8_t collective, uint64_t count, uint8_t dtype, uint8_t op, Rank root);

// The buffers stay the caller's until the operation has completed. Sizes are in elements.
//
//   collective      input          output               count
//   all_reduce      count          count                of the tensor
//   reduce          count          count at the root    of the tensor
//   broadcast       count at root  count                of the tensor
//   all_gather      own block      all blocks           of one block (or counts[r])
//   gather          own block      all blocks at root   of one block (or counts[r])
//   scatter         blocks at root own block            of one block (or counts[r])
//   reduce_scatter  all blocks     own block            of one block (or counts[r])
//   all_to_all      size blocks    size blocks          of one block
//   send, receive   count / -      - / count            of the message; root is the other side
//
// In place: input and output may be the same buffer where their sizes agree; for all_gather and
// gather the input may be the own block's place in the output, for scatter and reduce_scatter the
// output the own block's place in the input. Without an input (null), the data stands in that
// place. Any other overlap is an error. An operation completes only after all members have made the
// call.
struct Operation {
  Collective collective = Collective::kAllReduce;
  std::string_view name;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  DType dtype = DType::kF32;
  Op op = Op::kSum;
  Rank root = 0;                   // in the group
  std::span<const size_t> counts;  // one a member, `count` does not matter; empty: all equal to it
  // all_reduce: leave the result where the host's ranks share it; where they cannot, it goes to the
  // output, or to memory of the executor's if there is none.
  bool shared_result = false;
  // all_reduce within one host: inputs of members that died after they had handed them in, still in
  // their memory. Reduced after those of the group, in this order; equal on all ranks.
  std::span<const std::byte* const> left_behind;
  int mean_over = 0;  // kMean: what to divide by; 0: the number of members
  uint64_t mark = 0;  // the caller's, see Executor::handed_in
  // Planned by what every process knows by itself: for members that may not agree yet on what was
  // set or measured.
  bool plain_plan = false;
};

// What a peer of this host gave to a call, where it stands in the peer's memory.
struct HandedIn {
  const std::byte* data = nullptr;  // null: nothing that others can read
  bool finished = false;            // the peer has completed the call
};

}  // namespace pliant
