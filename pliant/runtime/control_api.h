// The HTTP interface of a job: what it is doing, and wishes about it. docs/CONTROL_API.md and
// docs/openapi.yaml describe it.
//
// Owned by whoever owns the coordinator, and shorter-lived than it, the event log and the loop.
// Everything is called, and every callback runs, with the loop held; so is the destructor.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/event_log.h"
#include "pliant/runtime/http_server.h"
#include "pliant/runtime/job_report.h"

namespace pliant {

// What the interface asks of the coordinator. Both answer at once. An error of kInvalid means that
// it cannot be done (409), of another code that it cannot be done now (503).
struct ControlBackend {
  std::function<Result<JobReport>()> status;
  std::function<Status(const Wish&)> wish;  // success: it will be done
  std::function<std::vector<StoreReport>()> stores = [] { return std::vector<StoreReport>(); };
};

struct ControlOptions {
  HttpOptions http;                               // its public paths are set here
  Duration heartbeat = std::chrono::seconds(15);  // a comment on each stream of events
};

struct ControlRoute {
  std::string method;
  std::string path;
  bool operator==(const ControlRoute&) const = default;
};

class ControlApi final {
 public:
  static Result<std::unique_ptr<ControlApi>> open(Loop& loop, EventLog& events,
                                                  ControlBackend backend, ControlOptions options);
  ~ControlApi();
  ControlApi(const ControlApi&) = delete;
  ControlApi& operator=(const ControlApi&) = delete;

  std::string endpoint() const { return server_->endpoint(); }
  size_t stream_count() const { return streams_.size(); }
  // All that is served.
  static std::vector<ControlRoute> routes();

 private:
  ControlApi(Loop& loop, EventLog& events, ControlBackend backend, Duration heartbeat);
  HttpAnswer answer(const HttpRequest& request);
  HttpAnswer get_view(const HttpRequest& request);
  HttpAnswer get_members(const HttpRequest& request);
  HttpAnswer get_status(const HttpRequest& request);
  HttpAnswer get_stores(const HttpRequest& request);
  HttpAnswer get_events(const HttpRequest& request);
  HttpAnswer get_metrics(const HttpRequest& request);
  HttpAnswer get_health(const HttpRequest& request);
  HttpAnswer put_size(const HttpRequest& request);
  HttpAnswer post_drain(const HttpRequest& request);
  HttpAnswer post_stop(const HttpRequest& request);
  HttpAnswer tell(const std::function<std::string(const JobReport&)>& as_text);
  HttpAnswer grant(const Wish& wish, const std::string& body);
  void open_stream(HttpStreamId stream);
  void send_heartbeats();

  struct Entry;
  static const std::vector<Entry>& table();

  Loop& loop_;
  EventLog& events_;
  const ControlBackend backend_;
  const Duration heartbeat_;
  std::unique_ptr<HttpServer> server_;
  std::map<HttpStreamId, EventLog::Subscription> streams_;
  std::optional<Loop::TimerId> timer_;
};

}  // namespace pliant
