// What happened in a job, for people and their programs: a bounded ring of numbered events.
//
// Numbers only grow, so a reader that was away asks for what came after the last one it saw; if
// that is no longer kept, it is told that there is a gap. Called by one thread at a time (in the
// coordinator: with its loop held); subscribers are called inside append().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pliant {

struct Event {
  uint64_t id = 0;
  int64_t time_ms = 0;  // since 1970
  std::string kind;     // one word: "view", "loss", "resize", "paused", ...
  std::string message;  // one line for people
  std::string details;  // a JSON object as text for programs, or empty

  bool operator==(const Event&) const = default;
};

class EventLog final {
 public:
  static constexpr size_t kDetailsBytesMax = size_t{16} << 10;
  enum class Subscription : uint64_t {};

  // A coordinator that was restarted goes on counting where the one before may have stopped.
  explicit EventLog(size_t kept_max = 1024, uint64_t first_id = 1);

  // Keeps an event under the next number, which is returned, and tells the subscribers. Line ends
  // in `kind` and `message` become blanks; details that are no JSON object, or too long, are left
  // out.
  uint64_t append(Event event);

  struct Since {
    std::vector<Event> events;
    bool gap = false;  // events between `id` and the first of these are no longer kept
  };
  // All kept events after number `id`. A number that was never given out is of another life of the
  // job: everything is new to its reader.
  Since since(uint64_t id) const;
  uint64_t newest_id() const { return next_id_ - 1; }

  Subscription subscribe(std::function<void(const Event&)> callback);
  void unsubscribe(Subscription subscription);

 private:
  const size_t kept_max_;
  uint64_t next_id_;
  std::deque<Event> events_;
  uint64_t next_subscription_ = 1;
  std::map<uint64_t, std::function<void(const Event&)>> subscribers_;
};

}  // namespace pliant
