// Whether two pieces of memory have a byte in common. Pure; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace pliant {

inline bool overlap(std::span<const std::byte> left, std::span<const std::byte> right) {
  // std::less orders pointers of different arrays, which the built-in comparison need not.
  const std::less<const std::byte*> before;
  return !left.empty() && !right.empty() && before(left.data(), right.data() + right.size()) &&
         before(right.data(), left.data() + left.size());
}

}  // namespace pliant
