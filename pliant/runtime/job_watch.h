// Between a coordinator and its HTTP interface: news become numbered events and counters, status
// becomes a report, and wishes of people become the coordinator's own.
//
// Owned by whoever owns the coordinator, and longer-lived than the ControlApi that reads its
// events. Called with the coordinator's loop held.
#pragma once

#include <cstdint>

#include "pliant/base/time.h"
#include "pliant/runtime/control_api.h"
#include "pliant/runtime/coordinator.h"
#include "pliant/runtime/event_log.h"
#include "pliant/runtime/job_report.h"

namespace pliant {

class JobWatch final {
 public:
  // A coordinator that takes over a job gives a number beyond those that were given out before, or
  // readers that come back would miss events.
  explicit JobWatch(uint64_t first_event = 1);
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // For Coordinator::Callbacks::on_news.
  void hear(const JobNews& news);
  EventLog& events() { return events_; }
  // Both clocks at the same moment: members carry the one, people read the other.
  JobReport report(const JobStatus& status, Instant now, int64_t wall_clock_ms) const;
  // What a ControlApi needs; the coordinator outlives it.
  ControlBackend backend(Coordinator& coordinator);

 private:
  EventLog events_;
  uint64_t views_ = 0;
  uint64_t joins_ = 0;
  uint64_t losses_ = 0;
  ChangeDurations last_change_;
};

JobWish::Any job_wish(const Wish& wish);

}  // namespace pliant
