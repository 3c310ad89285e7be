// What a call means for one rank: whether it is right, how much memory it uses, by which key it is
// matched. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pliant/base/result.h"
#include "pliant/collective/group.h"
#include "pliant/collective/operation.h"

namespace pliant {

// Whether a call is right by itself; its collective is one. Says what is wrong.
Status check_call(const Operation& operation, const Group& group);

// True if `call` is right because `before` was: an all_reduce again, perhaps on other memory.
bool repeats(const Operation& call, const Operation& before);

// Equal on all ranks that make the same call; of a send and its receive, too.
uint64_t key_of(const Operation& operation, const Group& group);

// Elements of this rank's buffers, and of the largest input of any rank.
struct Sizes {
  size_t input = 0;
  size_t output = 0;
  size_t largest_input = 0;
};
Sizes sizes_of(const Operation& operation, const Group& group);

// In place: where the input stands in an output that holds it, or the output in such an input.
struct InPlace {
  size_t input = 0;  // bytes
  size_t output = 0;
};
InPlace in_place(const Operation& operation, const Group& group);

// The call without what does not matter to it, in which ranks may differ. Where there are counts,
// `count` becomes their sum.
Operation essence(const Operation& operation, const Group& group);

}  // namespace pliant
