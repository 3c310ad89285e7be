// Whether a sequence has an element, as std::ranges::contains of C++23 says it.
#pragma once

#include <algorithm>
#include <ranges>

namespace pliant {

template <std::ranges::input_range Range, typename Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::ranges::end(range);
}

}  // namespace pliant
