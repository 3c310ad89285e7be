#include "pliant/runtime/control_api.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace pliant {
namespace {

constexpr const char* kHealthPath = "/healthz";

HttpAnswer json_answer(std::string body, int status = 200) {
  return {.status = status, .body = std::move(body) + "\n", .fields = {}, .on_stream = {}};
}

HttpAnswer refusal(const Error& error) {
  return http_error(error.code == Code::kInvalid ? 409 : 503, error.message);
}

// As the standard for server-sent events has it. The data is JSON, which has no line ends.
std::string sent_event(const Event& event) {
  return fmt::format("id: {}\nevent: {}\ndata: {}\n\n", event.id, event.kind, event_json(event));
}

constexpr const char* kGap =
    "event: gap\ndata: {\"message\":\"older events are no longer kept\"}\n\n";

Result<uint64_t> parse_event_id(std::string_view text) {
  uint64_t id = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), id);
  if (read.ec != std::errc{} || read.ptr != text.data() + text.size())
    return invalid("the number of an event is a whole number");
  return id;
}

// Last-Event-ID wins: a client that reconnects by itself keeps the query of its first request.
Result<uint64_t> first_wanted(const HttpRequest& request) {
  if (const auto last = request.field("last-event-id"); !last.empty()) return parse_event_id(last);
  const auto since = request.query.find("since");
  if (since != request.query.end()) return parse_event_id(since->second);
  return uint64_t{0};
}

}  // namespace

struct ControlApi::Entry {
  const char* method;
  const char* path;
  HttpAnswer (ControlApi::*answer)(const HttpRequest&);
};

const std::vector<ControlApi::Entry>& ControlApi::table() {
  static const std::vector<Entry> entries = {
      {"GET", "/v1/view", &ControlApi::get_view},
      {"GET", "/v1/members", &ControlApi::get_members},
      {"GET", "/v1/status", &ControlApi::get_status},
      {"GET", "/v1/stores", &ControlApi::get_stores},
      {"GET", "/v1/events", &ControlApi::get_events},
      {"PUT", "/v1/size", &ControlApi::put_size},
      {"POST", "/v1/drain", &ControlApi::post_drain},
      {"POST", "/v1/stop", &ControlApi::post_stop},
      {"GET", "/metrics", &ControlApi::get_metrics},
      {"GET", kHealthPath, &ControlApi::get_health},
  };
  return entries;
}

std::vector<ControlRoute> ControlApi::routes() {
  std::vector<ControlRoute> list;
  for (const Entry& entry : table()) list.push_back({entry.method, entry.path});
  return list;
}

Result<std::unique_ptr<ControlApi>> ControlApi::open(Loop& loop, EventLog& events,
                                                     ControlBackend backend,
                                                     ControlOptions options) {
  std::unique_ptr<ControlApi> api(
      new ControlApi(loop, events, std::move(backend), options.heartbeat));
  options.http.public_paths = {kHealthPath};
  auto server = HttpServer::open(
      loop, std::move(options.http),
      {.on_request = [self = api.get()](const HttpRequest& r) { return self->answer(r); },
       .on_stream_closed =
           [self = api.get()](HttpStreamId stream) {
             const auto at = self->streams_.find(stream);
             if (at == self->streams_.end()) return;
             self->events_.unsubscribe(at->second);
             self->streams_.erase(at);
           }});
  if (!server.ok()) return server.error();
  api->server_ = std::move(*server);
  return api;
}

ControlApi::ControlApi(Loop& loop, EventLog& events, ControlBackend backend, Duration heartbeat)
    : loop_(loop), events_(events), backend_(std::move(backend)), heartbeat_(heartbeat) {}

ControlApi::~ControlApi() {
  loop_.assert_held();
  if (timer_) loop_.cancel(*timer_);
  for (const auto& [stream, subscription] : streams_) events_.unsubscribe(subscription);
}

HttpAnswer ControlApi::answer(const HttpRequest& request) {
  std::string allowed;
  for (const Entry& entry : table()) {
    if (request.path != entry.path) continue;
    if (request.method == entry.method) return (this->*entry.answer)(request);
    allowed += (allowed.empty() ? "" : ", ") + std::string(entry.method);
  }
  if (allowed.empty()) return http_error(404, "there is nothing at " + request.path);
  HttpAnswer refusal =
      http_error(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method));
  refusal.fields.emplace_back("Allow", allowed);
  return refusal;
}

HttpAnswer ControlApi::tell(const std::function<std::string(const JobReport&)>& as_text) {
  const auto report = backend_.status();
  if (!report.ok()) return refusal(report.error());
  return json_answer(as_text(*report));
}

HttpAnswer ControlApi::get_view(const HttpRequest&) { return tell(view_json); }

HttpAnswer ControlApi::get_members(const HttpRequest&) { return tell(members_json); }

HttpAnswer ControlApi::get_status(const HttpRequest&) { return tell(report_json); }

HttpAnswer ControlApi::get_stores(const HttpRequest&) {
  return json_answer(stores_json(backend_.stores()));
}

HttpAnswer ControlApi::get_health(const HttpRequest&) { return json_answer("{\"ok\":true}"); }

HttpAnswer ControlApi::get_metrics(const HttpRequest&) {
  const auto report = backend_.status();
  if (!report.ok()) return refusal(report.error());
  return {.status = 200,
          .type = "text/plain; version=0.0.4; charset=utf-8",
          .body = metrics_text(*report),
          .fields = {},
          .on_stream = {}};
}

HttpAnswer ControlApi::get_events(const HttpRequest& request) {
  const auto after = first_wanted(request);
  if (!after.ok()) return http_error(400, after.error().message);
  const auto follow = request.query.find("follow");
  if (follow != request.query.end() && follow->second != "0" && follow->second != "1")
    return http_error(400, "follow is 0 or 1");
  const EventLog::Since since = events_.since(*after);
  if (follow != request.query.end() && follow->second == "0")
    return json_answer(events_json(since.events));
  HttpAnswer stream;
  stream.type = "text/event-stream";
  stream.body = "retry: 1000\n\n";
  if (since.gap) stream.body += kGap;
  for (const Event& event : since.events) stream.body += sent_event(event);
  // Nothing can be appended between the two: the loop is held.
  stream.on_stream = [this](HttpStreamId id) { open_stream(id); };
  return stream;
}

void ControlApi::open_stream(HttpStreamId stream) {
  streams_[stream] = events_.subscribe(
      [this, stream](const Event& event) { server_->send(stream, sent_event(event)); });
  if (!timer_) timer_ = loop_.at(now() + heartbeat_, [this] { send_heartbeats(); });
}

void ControlApi::send_heartbeats() {
  timer_.reset();
  for (const auto& [stream, subscription] : streams_) server_->send(stream, ": alive\n\n");
  if (!streams_.empty()) timer_ = loop_.at(now() + heartbeat_, [this] { send_heartbeats(); });
}

HttpAnswer ControlApi::grant(const Wish& wish, const std::string& body) {
  const Status status = backend_.wish(wish);
  if (status.ok()) return json_answer(body, 202);
  return refusal(status.error());
}

HttpAnswer ControlApi::put_size(const HttpRequest& request) {
  const auto wish = parse_resize(request.body);
  if (!wish.ok()) return http_error(400, wish.error().message);
  return grant(*wish, fmt::format("{{\"target\":{}}}", wish->size));
}

HttpAnswer ControlApi::post_drain(const HttpRequest& request) {
  const auto wish = parse_drain(request.body);
  if (!wish.ok()) return http_error(400, wish.error().message);
  return grant(*wish, "{\"draining\":" + wish_json(*wish) + "}");
}

HttpAnswer ControlApi::post_stop(const HttpRequest&) {
  return grant(StopWish{}, "{\"stopping\":true}");
}

}  // namespace pliant
