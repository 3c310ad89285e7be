#include "pliant/collective/schedule.h"

#include <algorithm>

namespace pliant {

LaneRange range_of(const Schedule& schedule, size_t lane) {
  LaneRange range;
  range.block = lane % schedule.blocks.size();
  range.offset = (lane / schedule.blocks.size()) * schedule.chunk_elements;
  const size_t count = schedule.blocks[range.block].count;
  range.count = range.offset >= count ? 0 : std::min(schedule.chunk_elements, count - range.offset);
  return range;
}

Split split(size_t count, size_t parts, size_t index) {
  const size_t each = count / parts;
  const size_t longer = count % parts;
  return {index * each + std::min(index, longer), each + (index < longer ? 1 : 0)};
}

}  // namespace pliant
