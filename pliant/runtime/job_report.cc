#include "pliant/runtime/job_report.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

namespace pliant {
namespace {

using Json = nlohmann::ordered_json;

constexpr JobState kStates[] = {JobState::kStarting, JobState::kRunning, JobState::kPaused,
                                JobState::kEnding};

std::string text_of(const Json& json) {
  // Names of hosts and programs need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Reads the fields of an object; the first that is missing or of the wrong kind is remembered.
class Fields final {
 public:
  explicit Fields(const Json& object) : object_(object) {
    if (!object.is_object()) fault_ = "it is no object";
  }
  template <typename T>
  void read(const char* name, T& value) {
    const Json* const found = find(name);
    if (found == nullptr) return;
    if constexpr (std::is_same_v<T, std::string>) {
      if (!found->is_string()) return fail(name, "is no string");
      value = found->get<std::string>();
    } else {
      const auto number = integer<T>(*found);
      if (!number) return fail(name, "is no number in its range");
      value = *number;
    }
  }
  const Json* find(const char* name) {
    if (!fault_.empty()) return nullptr;
    const auto at = object_.find(name);
    if (at != object_.end()) return &*at;
    fail(name, "is missing");
    return nullptr;
  }
  void fail(const char* name, const char* what) {
    if (fault_.empty()) fault_ = fmt::format("'{}' {}", name, what);
  }
  void absorb(const Fields& inner) {
    if (fault_.empty()) fault_ = inner.fault_;
  }
  Status status() const {
    if (fault_.empty()) return {};
    return invalid(fault_);
  }

 private:
  template <typename T>
  static std::optional<T> integer(const Json& json) {
    if (json.is_number_unsigned()) {
      const auto value = json.get<uint64_t>();
      if (value > static_cast<uint64_t>(std::numeric_limits<T>::max())) return std::nullopt;
      return static_cast<T>(value);
    }
    if (!json.is_number_integer() || !std::is_signed_v<T>) return std::nullopt;
    const auto value = json.get<int64_t>();
    if (value < static_cast<int64_t>(std::numeric_limits<T>::min())) return std::nullopt;
    return static_cast<T>(value);
  }

  const Json& object_;
  std::string fault_;
};

Json parsed(const std::string& text) { return Json::parse(text, nullptr, false); }

Json members_of(const JobReport& status) {
  Json members = Json::array();
  for (const MemberReport& member : status.members) {
    members.push_back({{"rank", member.rank},
                       {"peer", to_string(member.peer)},
                       {"host", member.host},
                       {"pid", member.pid},
                       {"since_ms", member.since_ms}});
  }
  return members;
}

void read_member(const Json& object, Fields& outer, MemberReport& member) {
  Fields fields(object);
  fields.read("rank", member.rank);
  fields.read("host", member.host);
  fields.read("pid", member.pid);
  fields.read("since_ms", member.since_ms);
  std::string peer;
  fields.read("peer", peer);
  const auto id = parse_peer_id(peer);
  if (id.ok()) {
    member.peer = *id;
  } else {
    fields.fail("peer", "is no peer");
  }
  outer.absorb(fields);
}

void read_change(const Json& object, Fields& outer, ChangeDurations& change) {
  Fields fields(object);
  fields.read("detect_ns", change.detect_ns);
  fields.read("agree_ns", change.agree_ns);
  fields.read("redo_ns", change.redo_ns);
  fields.read("transfer_ns", change.transfer_ns);
  fields.read("transfer_bytes", change.transfer_bytes);
  outer.absorb(fields);
}

void read_state(Fields& fields, JobState& state) {
  std::string word;
  fields.read("state", word);
  for (const JobState known : kStates) {
    if (word == to_string(known)) {
      state = known;
      return;
    }
  }
  fields.fail("state", "is no state of a job");
}

// Inside the quotes of a label's value.
std::string label_value(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result;
}

class MetricsText final {
 public:
  explicit MetricsText(const std::string& job) : label_("job=\"" + label_value(job) + "\"") {}
  template <typename T>
  void add(const char* name, const char* kind, const char* help, T value) {
    text_ += fmt::format("# HELP pliant_{0} {1}\n# TYPE pliant_{0} {2}\npliant_{0}{{{3}}} {4}\n",
                         name, help, kind, label_, value);
  }
  const std::string& text() const { return text_; }

 private:
  const std::string label_;
  std::string text_;
};

double in_seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

Error not_a(const char* what, const Error& error) {
  return invalid(fmt::format("this is no {}: {}", what, error.message));
}

Json object_of(const Event& event) {
  Json object = {{"id", event.id},
                 {"time_ms", event.time_ms},
                 {"kind", event.kind},
                 {"message", event.message}};
  if (!event.details.empty()) object["details"] = parsed(event.details);
  return object;
}

Result<Event> read_event(const Json& object) {
  Fields fields(object);
  Event event;
  fields.read("id", event.id);
  fields.read("time_ms", event.time_ms);
  fields.read("kind", event.kind);
  fields.read("message", event.message);
  if (object.is_object() && object.contains("details")) event.details = text_of(object["details"]);
  if (Status good = fields.status(); !good.ok()) return not_a("event", good.error());
  return event;
}

}  // namespace

const char* to_string(JobState state) {
  switch (state) {
    case JobState::kStarting: return "starting";
    case JobState::kRunning: return "running";
    case JobState::kPaused: return "paused";
    case JobState::kEnding: return "ending";
  }
  return "unknown";
}

std::string members_json(const JobReport& status) { return text_of(members_of(status)); }

std::string view_json(const JobReport& status) {
  return text_of({{"epoch", status.epoch}, {"members", members_of(status)}});
}

std::string report_json(const JobReport& status) {
  return text_of({{"job", status.job},
                  {"state", to_string(status.state)},
                  {"epoch", status.epoch},
                  {"target", status.target},
                  {"min", status.min},
                  {"max", status.max},
                  {"step", status.step},
                  {"samples", status.samples},
                  {"paused_reason", status.paused_reason},
                  {"views_total", status.views_total},
                  {"joins_total", status.joins_total},
                  {"losses_total", status.losses_total},
                  {"coordinator_pid", status.coordinator_pid},
                  {"last_change",
                   {{"detect_ns", status.last_change.detect_ns},
                    {"agree_ns", status.last_change.agree_ns},
                    {"redo_ns", status.last_change.redo_ns},
                    {"transfer_ns", status.last_change.transfer_ns},
                    {"transfer_bytes", status.last_change.transfer_bytes}}},
                  {"members", members_of(status)}});
}

Result<JobReport> parse_report(const std::string& json) {
  const Json object = parsed(json);
  Fields fields(object);
  JobReport status;
  fields.read("job", status.job);
  read_state(fields, status.state);
  fields.read("epoch", status.epoch);
  fields.read("target", status.target);
  fields.read("min", status.min);
  fields.read("max", status.max);
  fields.read("step", status.step);
  fields.read("samples", status.samples);
  fields.read("paused_reason", status.paused_reason);
  fields.read("views_total", status.views_total);
  fields.read("joins_total", status.joins_total);
  fields.read("losses_total", status.losses_total);
  fields.read("coordinator_pid", status.coordinator_pid);
  if (const Json* const change = fields.find("last_change"))
    read_change(*change, fields, status.last_change);
  if (const Json* const members = fields.find("members")) {
    if (!members->is_array()) fields.fail("members", "is no array");
    for (const Json& member : *members) read_member(member, fields, status.members.emplace_back());
  }
  if (Status good = fields.status(); !good.ok()) return not_a("status of a job", good.error());
  return status;
}

std::string metrics_text(const JobReport& status) {
  MetricsText metrics(status.job);
  metrics.add("members", "gauge", "Members of the view.", status.members.size());
  metrics.add("target", "gauge", "Members wanted.", status.target);
  metrics.add("members_min", "gauge", "Fewest members with which the job goes on.", status.min);
  metrics.add("members_max", "gauge", "Most members that the job may have.", status.max);
  metrics.add("epoch", "gauge", "Number of the view.", status.epoch);
  metrics.add("paused", "gauge", "1 while too few members are left.",
              status.state == JobState::kPaused ? 1 : 0);
  metrics.add("step", "gauge", "Last step reported.", status.step);
  metrics.add("samples_total", "counter", "Samples of committed steps.", status.samples);
  metrics.add("views_total", "counter", "Views published.", status.views_total);
  metrics.add("joins_total", "counter", "Workers that became members.", status.joins_total);
  metrics.add("losses_total", "counter", "Members lost without a plan.", status.losses_total);
  const ChangeDurations& change = status.last_change;
  metrics.add("change_detect_seconds", "gauge", "Last change: until it was noticed.",
              in_seconds(change.detect_ns));
  metrics.add("change_agree_seconds", "gauge", "Last change: until the members agreed.",
              in_seconds(change.agree_ns));
  metrics.add("change_redo_seconds", "gauge", "Last change: redoing the open step.",
              in_seconds(change.redo_ns));
  metrics.add("change_transfer_seconds", "gauge", "Last change: moving state to newcomers.",
              in_seconds(change.transfer_ns));
  metrics.add("change_transfer_bytes", "gauge", "Last change: state moved to newcomers.",
              change.transfer_bytes);
  return metrics.text();
}

std::string event_json(const Event& event) { return text_of(object_of(event)); }

Result<Event> parse_event(const std::string& json) { return read_event(parsed(json)); }

std::string events_json(const std::vector<Event>& events) {
  Json array = Json::array();
  for (const Event& event : events) array.push_back(object_of(event));
  return text_of(array);
}

Result<std::vector<Event>> parse_events(const std::string& json) {
  const Json array = parsed(json);
  if (!array.is_array()) return invalid("this is no list of events");
  std::vector<Event> events;
  for (const Json& object : array) {
    auto event = read_event(object);
    if (!event.ok()) return event.error();
    events.push_back(std::move(*event));
  }
  return events;
}

std::string stores_json(const std::vector<StoreReport>& stores) {
  Json array = Json::array();
  for (const StoreReport& store : stores)
    array.push_back(
        {{"host", store.host}, {"endpoint", store.endpoint}, {"transfer", store.transfer}});
  return text_of(array);
}

Result<std::vector<StoreReport>> parse_stores(const std::string& json) {
  const Json array = parsed(json);
  if (!array.is_array()) return invalid("this is no list of stores");
  std::vector<StoreReport> stores;
  for (const Json& object : array) {
    StoreReport& store = stores.emplace_back();
    Fields fields(object);
    fields.read("host", store.host);
    fields.read("endpoint", store.endpoint);
    fields.read("transfer", store.transfer);
    PLIANT_TRY(fields.status());
  }
  return stores;
}

std::string wish_json(const Wish& wish) {
  if (const auto* resize = std::get_if<ResizeWish>(&wish)) return text_of({{"size", resize->size}});
  const auto* const drain = std::get_if<DrainWish>(&wish);
  if (drain == nullptr) return "{}";
  if (drain->host.empty()) return text_of({{"peer", to_string(drain->peer)}});
  return text_of({{"host", drain->host}});
}

Result<ResizeWish> parse_resize(const std::string& json) {
  const Json object = parsed(json);
  Fields fields(object);
  ResizeWish wish;
  fields.read("size", wish.size);
  if (!fields.status().ok() || object.size() != 1)
    return invalid("the body must be {\"size\": N}, with a whole number N");
  return wish;
}

Result<DrainWish> parse_drain(const std::string& json) {
  const Error error =
      invalid("the body must be {\"host\": \"NAME\"} or {\"peer\": \"HOST.SLOT#INCARNATION\"}");
  const Json object = parsed(json);
  if (!object.is_object() || object.size() != 1) return error;
  Fields fields(object);
  DrainWish wish;
  if (object.contains("host")) {
    fields.read("host", wish.host);
    if (!fields.status().ok() || wish.host.empty()) return error;
    return wish;
  }
  std::string peer;
  fields.read("peer", peer);
  if (!fields.status().ok()) return error;
  const auto id = parse_peer_id(peer);
  if (!id.ok()) return id.error();
  wish.peer = *id;
  return wish;
}

Result<PeerId> parse_peer_id(const std::string& text) {
  PeerId peer;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  const auto take = [&](auto& number, char after) {
    const auto read = std::from_chars(at, end, number);
    if (read.ec != std::errc{}) return false;
    at = read.ptr;
    if (after == '\0') return at == end;
    return at != end && *at++ == after;
  };
  if (!take(peer.host, '.') || !take(peer.slot, '#') || !take(peer.incarnation, '\0') ||
      peer.incarnation == 0)
    return invalid(fmt::format("'{}' is no peer: write host.slot#incarnation, as 0.2#1", text));
  return peer;
}

}  // namespace pliant
