#include "cli/event_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "cli/job_client.h"
#include "pliant/runtime/job_report.h"

namespace pliant::cli {
namespace {
constexpr Duration kRetry = std::chrono::milliseconds(200);
constexpr size_t kLineBytesMax = size_t{1} << 20;
}  // namespace

std::vector<SentEvents::Item> SentEvents::take(std::string_view text) {
  rest_.append(text);
  std::vector<Item> items;
  size_t begin = 0;
  for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(rest_).substr(begin, end - begin);
    if (line.empty()) {
      if (!item_.data.empty()) items.push_back(item_);
      item_ = {};
    } else if (line.starts_with("event: ")) {
      item_.kind = line.substr(7);
    } else if (line.starts_with("data: ")) {
      item_.data += line.substr(6);
    }
  }
  rest_.erase(0, begin);
  // No event of ours has such a line; keeping it would let a stranger fill our memory.
  if (rest_.size() > kLineBytesMax) rest_.clear();
  return items;
}

EventFeed::EventFeed(std::function<Result<JobEntry>()> find, uint64_t since)
    : find_(std::move(find)), last_id_(since) {}

Status EventFeed::connect() {
  const auto job = find_();
  if (!job.ok()) return job.error();
  HttpCall call{.endpoint = job->endpoint, .token = job->token};
  call.target = fmt::format("/v1/events?since={}", last_id_);
  auto exchange = HttpExchange::open(call, kCallDeadline);
  if (!exchange.ok()) return unreachable(*job, exchange.error());
  if ((*exchange)->status() != 200) {
    refused_ = true;
    const auto text = (*exchange)->read(kCallDeadline);
    return refusal_in({(*exchange)->status(), text.ok() ? *text : ""});
  }
  exchange_ = std::move(*exchange);
  items_ = {};
  give_up_.reset();
  return {};
}

Result<std::vector<Event>> EventFeed::next(Duration longest) {
  if (ended_) return std::vector<Event>{};
  if (!exchange_) {
    if (Status status = connect(); !status.ok()) {
      if (!give_up_ || refused_ || now() >= *give_up_) return status.error();
      std::this_thread::sleep_for(std::min(longest, kRetry));
      return std::vector<Event>{};
    }
  }
  auto events = read(longest);
  if (!events.ok()) {
    exchange_.reset();
    give_up_ = now() + kGiveUp;
    return std::vector<Event>{};
  }
  return events;
}

Result<std::vector<Event>> EventFeed::read(Duration longest) {
  const auto text = exchange_->read(longest);
  if (!text.ok()) return text.error();
  std::vector<Event> events;
  for (const SentEvents::Item& item : items_.take(*text)) {
    auto event = parse_event(item.data);
    if (item.kind == "gap") {
      event = Event{.id = 0,
                    .time_ms = 0,
                    .kind = "gap",
                    .message = "older events are no longer kept",
                    .details = ""};
    }
    if (!event.ok()) continue;  // of a later version
    if (event->id != 0) last_id_ = event->id;
    events.push_back(std::move(*event));
  }
  if (exchange_->ended()) ended_ = true;
  return events;
}

}  // namespace pliant::cli
