#include "pliant/sim/timeline.h"

#include <algorithm>
#include <utility>

namespace pliant::sim {

void Timeline::at(Instant time, Event event) {
  heap_.push_back({std::max(time, now_), next_number_++, std::move(event)});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

bool Timeline::step() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  const Entry entry = std::move(heap_.back());
  heap_.pop_back();
  now_ = entry.time;
  ++events_;
  entry.event();
  return true;
}

}  // namespace pliant::sim
