// The events of a job as they happen: reads the stream of GET /v1/events, and takes it up again
// where it broke when the coordinator was away for a moment. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/http_client.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/runtime/event_log.h"
#include "pliant/runtime/job_files.h"

namespace pliant::cli {

// Takes server-sent events apart, whatever pieces they arrive in.
class SentEvents final {
 public:
  struct Item {
    std::string kind;
    std::string data;
  };
  std::vector<Item> take(std::string_view text);

 private:
  std::string rest_;
  Item item_;
};

class EventFeed final {
 public:
  // `find` tells where the job is; it is asked again before each attempt to reconnect.
  EventFeed(std::function<Result<JobEntry>()> find, uint64_t since);

  // The next events; none if none came within `longest`. An error when the job cannot be reached,
  // or not any more for `kGiveUp`. A "gap" has the number 0.
  Result<std::vector<Event>> next(Duration longest);
  // The job has ended the stream: nothing will come any more.
  bool ended() const { return ended_; }
  int fd() const { return exchange_ ? exchange_->fd() : -1; }  // -1 while it is not connected

  static constexpr Duration kGiveUp = std::chrono::seconds(5);

 private:
  Status connect();
  Result<std::vector<Event>> read(Duration longest);

  const std::function<Result<JobEntry>()> find_;
  uint64_t last_id_;
  std::unique_ptr<HttpExchange> exchange_;
  SentEvents items_;
  std::optional<Instant> give_up_;  // set once it was connected, and is not
  bool refused_ = false;            // the job answered, and said no
  bool ended_ = false;
};

}  // namespace pliant::cli
