#include "pliant/runtime/coordinator_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "pliant/base/log.h"
#include "pliant/base/thread.h"
#include "pliant/runtime/control_api.h"
#include "pliant/runtime/coordinator.h"
#include "pliant/runtime/job_watch.h"
#include "pliant/runtime/journal.h"
#include "pliant/runtime/output.h"

namespace pliant {
namespace {

using Json = nlohmann::json;

constexpr Duration kSpecWait = std::chrono::seconds(30);
constexpr size_t kSpecBytesMax = size_t{16} << 20;
// The last record holds everything, so the others can go now and then.
constexpr uint64_t kJournalBytesMax = uint64_t{4} << 20;
// Numbers of events only grow; no coordinator lives long enough to tell of so many.
constexpr uint64_t kEventsOfOneLife = 1'000'000'000;

Json hosts_json(const RosterOptions& roster) {
  Json hosts = Json::array();
  for (const PlaceHost& host : roster.hosts)
    hosts.push_back({{"name", host.name}, {"slots", host.slots}});
  return hosts;
}

Json schedule_json(const RosterOptions& roster) {
  Json schedule = Json::array();
  for (const ScheduledSize& entry : roster.schedule)
    schedule.push_back({{"step", entry.step}, {"size", entry.size}});
  return schedule;
}

// Fields that are missing keep their default; those of another type make it false.
class SpecFields final {
 public:
  explicit SpecFields(const Json& object) : object_(object), right_(object.is_object()) {}
  template <typename T>
  void read(const char* name, T& value) {
    const Json* const found = find(name);
    if (found == nullptr) return;
    if constexpr (std::is_same_v<T, std::string>) {
      right_ = right_ && found->is_string();
    } else if constexpr (std::is_same_v<T, bool>) {
      right_ = right_ && found->is_boolean();
    } else {
      right_ = right_ && found->is_number_integer();
    }
    if (right_) value = found->get<T>();
  }
  void read(const char* name, Duration& value) {
    int64_t ns = value.count();
    read(name, ns);
    value = Duration(ns);
  }
  // Calls `each` with the fields of every object of a list.
  template <typename Each>
  void read_list(const char* name, const Each& each) {
    const Json* const found = find(name);
    if (found == nullptr) return;
    right_ = right_ && found->is_array();
    if (!right_) return;
    for (const Json& element : *found) {
      SpecFields fields(element);
      each(fields);
      right_ = right_ && fields.right_;
    }
  }
  bool right() const { return right_; }

 private:
  const Json* find(const char* name) const {
    if (!right_) return nullptr;
    const auto at = object_.find(name);
    return at == object_.end() ? nullptr : &*at;
  }

  const Json& object_;
  bool right_;
};

Result<std::string> read_line(Instant deadline) {
  std::string text;
  std::array<char, 4096> room;
  while (text.find('\n') == std::string::npos && text.size() < kSpecBytesMax) {
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now());
    if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) == 0)
      return Error{Code::kTimeout, "the launcher sent no order", {}, {}};
    const ssize_t got = read(STDIN_FILENO, room.data(), room.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return invalid("no order on standard input: `pliant run` starts coordinators, not people");
    text.append(room.data(), static_cast<size_t>(got));
  }
  return text.substr(0, text.find('\n'));
}

class CoordinatorProcess final {
 public:
  CoordinatorProcess(Loop& loop, const CoordinatorSpec& spec, Journal& journal)
      : loop_(loop),
        spec_(spec),
        journal_(journal),
        error_(loop, STDERR_FILENO),
        watch_(spec.life * kEventsOfOneLife + 1) {}
  ~CoordinatorProcess() {
    if (watching_input_) loop_.unwatch(STDIN_FILENO);
  }
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  // Returns when the launcher hangs up.
  Status serve() {
    PLIANT_TRY(open());
    watching_input_ = true;
    loop_.watch(STDIN_FILENO, EPOLLIN, [this](uint32_t) {
      std::array<char, 256> ignored;
      if (read(STDIN_FILENO, ignored.data(), ignored.size()) <= 0) over_ = true;
    });
    run_promptly();
    while (!over_) {
      loop_.unlock();
      loop_.wait(std::chrono::hours(1));
      loop_.lock();
      loop_.turn();
    }
    api_.reset();
    coordinator_.reset();
    error_.drain();
    return {};
  }

 private:
  Status open() {
    CoordinatorOptions options;
    options.listener = spec_.listener;
    options.token = spec_.token;
    options.name = spec_.name;
    options.job.grace = spec_.grace;
    options.job.join_timeout = spec_.join_timeout;
    options.elastic = spec_.roster;
    if (!journal_.found().records.empty()) options.log = journal_.found().records.back();
    Coordinator::Callbacks callbacks;
    callbacks.on_news = [this](const JobNews& news) { watch_.hear(news); };
    callbacks.on_line = [this](const std::string& line) { error_.write("pliant: " + line + "\n"); };
    callbacks.on_log = [this](Bytes snapshot) { keep(snapshot); };
    auto coordinator = Coordinator::open(loop_, std::move(options), std::move(callbacks));
    if (!coordinator) return coordinator.error();
    coordinator_ = std::move(*coordinator);
    if (spec_.control_listener < 0) return {};
    ControlOptions control;
    control.http.listener = spec_.control_listener;
    control.http.token = spec_.control_token;
    auto api = ControlApi::open(loop_, watch_.events(), watch_.backend(*coordinator_), control);
    if (!api) return api.error();
    api_ = std::move(*api);
    return {};
  }

  // Nothing may be told that is not kept. Our successor reads what is really there.
  void keep(Bytes snapshot) {
    const Status kept = journal_.size_bytes() > kJournalBytesMax ? journal_.compact(snapshot)
                                                                 : journal_.append(snapshot);
    if (kept.ok()) return;
    log(LogLevel::kError, "the coordinator ends: " + kept.error().message);
    _exit(1);
  }

  Loop& loop_;
  const CoordinatorSpec& spec_;
  Journal& journal_;
  Output error_;
  JobWatch watch_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<ControlApi> api_;
  bool watching_input_ = false;
  bool over_ = false;
};

int fail(const Error& error, int exit_code) {
  log(LogLevel::kError, error.message);
  return exit_code;
}

}  // namespace

std::string spec_json(const CoordinatorSpec& spec) {
  const Json object = {{"listener", spec.listener},
                       {"control_listener", spec.control_listener},
                       {"token", spec.token},
                       {"control_token", spec.control_token},
                       {"name", spec.name},
                       {"journal", spec.journal},
                       {"life", spec.life},
                       {"verbose", spec.verbose},
                       {"grace_ns", spec.grace.count()},
                       {"join_timeout_ns", spec.join_timeout.count()},
                       {"heartbeat_ns", spec.roster.heartbeat.count()},
                       {"initial", spec.roster.initial},
                       {"min", spec.roster.min},
                       {"max", spec.roster.max},
                       {"restarts", spec.roster.restarts},
                       {"host_failures", spec.roster.places.failures_max},
                       {"hosts", hosts_json(spec.roster)},
                       {"schedule", schedule_json(spec.roster)}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<CoordinatorSpec> parse_coordinator_spec(const std::string& json) {
  const Json object = Json::parse(json, nullptr, false);
  SpecFields fields(object);
  CoordinatorSpec spec;
  fields.read("listener", spec.listener);
  fields.read("control_listener", spec.control_listener);
  fields.read("token", spec.token);
  fields.read("control_token", spec.control_token);
  fields.read("name", spec.name);
  fields.read("journal", spec.journal);
  fields.read("life", spec.life);
  fields.read("verbose", spec.verbose);
  fields.read("grace_ns", spec.grace);
  fields.read("join_timeout_ns", spec.join_timeout);
  fields.read("heartbeat_ns", spec.roster.heartbeat);
  fields.read("initial", spec.roster.initial);
  fields.read("min", spec.roster.min);
  fields.read("max", spec.roster.max);
  fields.read("restarts", spec.roster.restarts);
  fields.read("host_failures", spec.roster.places.failures_max);
  fields.read_list("hosts", [&](SpecFields& host) {
    PlaceHost& place = spec.roster.hosts.emplace_back();
    host.read("name", place.name);
    host.read("slots", place.slots);
  });
  fields.read_list("schedule", [&](SpecFields& entry) {
    ScheduledSize& size = spec.roster.schedule.emplace_back();
    entry.read("step", size.step);
    entry.read("size", size.size);
  });
  spec.roster.join_timeout = spec.join_timeout;
  const bool complete = spec.listener >= 0 && !spec.token.empty() && !spec.journal.empty() &&
                        !spec.roster.hosts.empty() &&
                        (spec.control_listener < 0 || !spec.control_token.empty());
  if (!fields.right() || !complete) return invalid("this is no order for a coordinator");
  return spec;
}

int serve_coordinator() {
  std::signal(SIGPIPE, SIG_IGN);
  const auto line = read_line(now() + kSpecWait);
  if (!line) return fail(line.error(), kCoordinatorHopeless);
  const auto spec = parse_coordinator_spec(*line);
  if (!spec) return fail(spec.error(), kCoordinatorHopeless);
  if (spec->verbose) set_log_level(LogLevel::kInfo);
  auto journal = Journal::open(spec->journal);
  if (!journal) return fail(journal.error(), kCoordinatorHopeless);
  const JournalContents& found = (*journal)->found();
  if (!found.warning.empty()) log(LogLevel::kWarning, found.warning);
  if (found.damaged)
    return fail(invalid("the coordinator's journal is damaged"), kCoordinatorHopeless);
  Status status;
  {
    Loop loop;
    const std::lock_guard guard(loop);
    status = CoordinatorProcess(loop, *spec, **journal).serve();
  }
  if (!status) return fail(status.error(), kCoordinatorHopeless);
  // The launcher removes the folder; if it was killed, nobody else does.
  if (const Status removed = (*journal)->remove(); !removed)
    log(LogLevel::kInfo, removed.error().message);
  rmdir(std::filesystem::path(spec->journal).parent_path().c_str());
  return 0;
}

}  // namespace pliant
