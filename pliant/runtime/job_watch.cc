#include "pliant/runtime/job_watch.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

namespace pliant {
namespace {

constexpr size_t kEventsKept = 1024;

int64_t ms_since_1970(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

template <typename T>
std::optional<T> number_in(const std::string& text) {
  T value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc{} || read.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

template <typename T>
void read_number(const std::map<std::string, std::string>& fields, const char* name, T& value) {
  const auto at = fields.find(name);
  if (at != fields.end()) value = number_in<T>(at->second).value_or(T{});
}

// A field has one type for ever: a host whose name is "7" stays a string.
bool is_numeric(const std::string& name) {
  static const std::set<std::string> names = {"epoch", "step", "size", "pid", "members", "slot"};
  return names.contains(name) || name.ends_with("_ns") || name.ends_with("_bytes");
}

std::string details_of(const std::map<std::string, std::string>& fields) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : fields) {
    const auto number = is_numeric(name) ? number_in<int64_t>(value) : std::nullopt;
    if (number) {
      object[name] = *number;
    } else {
      object[name] = value;
    }
  }
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

JobState state_of(const std::string& word) {
  if (word == "starting") return JobState::kStarting;
  if (word == "running") return JobState::kRunning;
  if (word == "paused") return JobState::kPaused;
  return JobState::kEnding;
}

}  // namespace

JobWatch::JobWatch(uint64_t first_event) : events_(kEventsKept, first_event) {}

void JobWatch::hear(const JobNews& news) {
  if (news.kind == "view") ++views_;
  if (news.kind == "join") ++joins_;
  if (news.kind == "loss") ++losses_;
  if (news.kind == "recovered") {
    last_change_ = {};
    read_number(news.fields, "detect_ns", last_change_.detect_ns);
    read_number(news.fields, "agree_ns", last_change_.agree_ns);
    read_number(news.fields, "redo_ns", last_change_.redo_ns);
    read_number(news.fields, "transfer_ns", last_change_.transfer_ns);
    read_number(news.fields, "transfer_bytes", last_change_.transfer_bytes);
  }
  events_.append({.id = 0,
                  .time_ms = ms_since_1970(news.time),
                  .kind = news.kind,
                  .message = news.text,
                  .details = details_of(news.fields)});
}

JobReport JobWatch::report(const JobStatus& status, Instant now, int64_t wall_clock_ms) const {
  JobReport report;
  report.job = status.name;
  report.state = state_of(status.state);
  report.epoch = status.epoch;
  report.target = status.target;
  report.min = status.min;
  report.max = status.max;
  report.step = status.step;
  report.samples = status.samples;
  report.coordinator_pid = getpid();
  report.paused_reason = status.paused;
  report.views_total = views_;
  report.joins_total = joins_;
  report.losses_total = losses_;
  report.last_change = last_change_;
  for (const JobStatus::Entry& entry : status.members) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - entry.since);
    report.members.push_back({.rank = entry.rank,
                              .peer = entry.member.id,
                              .host = entry.member.host,
                              .pid = entry.member.pid,
                              .since_ms = wall_clock_ms - age.count()});
  }
  return report;
}

ControlBackend JobWatch::backend(Coordinator& coordinator) {
  return {.status = [this, &coordinator]() -> Result<JobReport> {
            return report(coordinator.status(), pliant::now(),
                          ms_since_1970(std::chrono::system_clock::now()));
          },
          .wish = [&coordinator](const Wish& wish) { return coordinator.wish(job_wish(wish)); },
          .stores =
              [&coordinator] {
                std::vector<StoreReport> stores;
                for (const auto& [host, store] : coordinator.stores()) stores.push_back(store);
                return stores;
              }};
}

JobWish::Any job_wish(const Wish& wish) {
  if (const auto* resize = std::get_if<ResizeWish>(&wish)) return JobWish::Resize{resize->size};
  const auto* const drain = std::get_if<DrainWish>(&wish);
  if (drain == nullptr) return JobWish::Stop{};
  if (drain->host.empty()) return JobWish::DrainPeer{drain->peer};
  return JobWish::DrainHost{drain->host};
}

}  // namespace pliant
