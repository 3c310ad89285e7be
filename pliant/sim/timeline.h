// The simulated clock, and what happens when. Events of one moment happen in the order in which
// they were planned. Owned by a history; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pliant/base/time.h"

namespace pliant::sim {

class Timeline final {
 public:
  using Event = std::function<void()>;

  Instant now() const { return now_; }
  void at(Instant time, Event event);
  void after(Duration delay, Event event) { at(now_ + delay, std::move(event)); }
  // Lets the next event happen; false if there is none.
  bool step();
  uint64_t events() const { return events_; }

 private:
  struct Entry {
    Instant time;
    uint64_t number;
    Event event;
  };
  static bool later(const Entry& left, const Entry& right) {
    return left.time != right.time ? left.time > right.time : left.number > right.number;
  }

  Instant now_{std::chrono::hours(1)};
  uint64_t next_number_ = 0;
  uint64_t events_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace pliant::sim
