#include "pliant/runtime/event_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "pliant/base/check.h"

namespace pliant {
namespace {

void make_one_line(std::string& text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r' || c == '\0'; }, ' ');
}

bool is_object(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, false).is_object();
}

}  // namespace

EventLog::EventLog(size_t kept_max, uint64_t first_id)
    : kept_max_(std::max<size_t>(kept_max, 1)), next_id_(std::max<uint64_t>(first_id, 1)) {}

uint64_t EventLog::append(Event event) {
  event.id = next_id_++;
  make_one_line(event.kind);
  make_one_line(event.message);
  if (event.details.size() > kDetailsBytesMax || !is_object(event.details)) event.details.clear();
  events_.push_back(std::move(event));
  if (events_.size() > kept_max_) events_.pop_front();
  // A copy, because a subscriber may append or unsubscribe.
  const Event told = events_.back();
  const auto subscribers = subscribers_;
  for (const auto& [number, callback] : subscribers) {
    if (subscribers_.contains(number)) callback(told);
  }
  return told.id;
}

EventLog::Since EventLog::since(uint64_t id) const {
  if (id >= next_id_) id = 0;
  const auto first = std::ranges::find_if(events_, [&](const Event& e) { return e.id > id; });
  Since result{.events = {first, events_.end()}};
  const uint64_t oldest = events_.empty() ? next_id_ : events_.front().id;
  // Nobody misses the events before the first of a log when it asks for everything.
  result.gap = id != 0 && id + 1 < oldest;
  return result;
}

EventLog::Subscription EventLog::subscribe(std::function<void(const Event&)> callback) {
  PLIANT_CHECK(callback != nullptr);
  const uint64_t number = next_subscription_++;
  subscribers_.emplace(number, std::move(callback));
  return Subscription{number};
}

void EventLog::unsubscribe(Subscription subscription) {
  subscribers_.erase(static_cast<uint64_t>(subscription));
}

}  // namespace pliant
