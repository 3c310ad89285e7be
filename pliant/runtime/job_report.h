// The state of a job as people see it, and the wishes that they may have; as values, as JSON and as
// Prometheus text. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/runtime/event_log.h"

namespace pliant {

enum class JobState { kStarting, kRunning, kPaused, kEnding };

// "starting", "running", "paused", "ending"
const char* to_string(JobState state);

struct MemberReport {
  Rank rank = 0;
  PeerId peer;
  std::string host;
  int32_t pid = 0;
  int64_t since_ms = 0;  // when it became a member; since 1970
  bool operator==(const MemberReport&) const = default;
};

// How the last change of the view went; zeros before the first one.
struct ChangeDurations {
  int64_t detect_ns = 0;
  int64_t agree_ns = 0;
  int64_t redo_ns = 0;
  int64_t transfer_ns = 0;
  uint64_t transfer_bytes = 0;
  bool operator==(const ChangeDurations&) const = default;
};

struct JobReport {
  std::string job;
  JobState state = JobState::kStarting;
  uint32_t epoch = 0;
  uint32_t target = 0;
  uint32_t min = 0;
  uint32_t max = 0;
  std::vector<MemberReport> members;  // by rank
  uint64_t step = 0;
  uint64_t samples = 0;
  std::string paused_reason;  // empty unless paused
  uint64_t views_total = 0;
  uint64_t joins_total = 0;
  uint64_t losses_total = 0;
  ChangeDurations last_change;
  int32_t coordinator_pid = 0;
  bool operator==(const JobReport&) const = default;
};

// The store of a host whose agent is there (store_service.h).
struct StoreReport {
  uint32_t host = 0;     // its number
  std::string endpoint;  // of HTTP
  std::string transfer;  // for other stores, and for commands
  bool operator==(const StoreReport&) const = default;
};

// Wishes of people; the last of a kind counts.
struct ResizeWish {
  uint32_t size = 0;
  bool operator==(const ResizeWish&) const = default;
};
struct DrainWish {  // either a host's name or one peer (PeerId{} otherwise)
  std::string host;
  PeerId peer;
  bool operator==(const DrainWish&) const = default;
};
struct StopWish {
  bool operator==(const StopWish&) const = default;
};
using Wish = std::variant<ResizeWish, DrainWish, StopWish>;

std::string report_json(const JobReport& status);
Result<JobReport> parse_report(const std::string& json);
std::string members_json(const JobReport& status);                // an array
std::string view_json(const JobReport& status);                   // epoch and members
std::string stores_json(const std::vector<StoreReport>& stores);  // an array
Result<std::vector<StoreReport>> parse_stores(const std::string& json);
std::string metrics_text(const JobReport& status);

std::string event_json(const Event& event);
Result<Event> parse_event(const std::string& json);
std::string events_json(const std::vector<Event>& events);  // an array
Result<std::vector<Event>> parse_events(const std::string& json);

// Bodies of PUT /v1/size and POST /v1/drain.
std::string wish_json(const Wish& wish);
Result<ResizeWish> parse_resize(const std::string& json);
Result<DrainWish> parse_drain(const std::string& json);

// Reads "0.2#1".
Result<PeerId> parse_peer_id(const std::string& text);

}  // namespace pliant
