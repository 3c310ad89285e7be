// What `pliant run` works out before it starts anything.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pliant/runtime/launch.h"

namespace pliant {

Result<std::vector<std::string>> launcher_words(const std::string& launcher,
                                                const std::string& host) {
  constexpr std::string_view kHost = "{host}";
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = '\0';
  for (const char c : launcher) {
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t') {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (in_word) words.push_back(word);
  bool named = false;
  for (std::string& text : words) {
    for (size_t at = 0; (at = text.find(kHost, at)) != std::string::npos; at += host.size()) {
      text.replace(at, kHost.size(), host);
      named = true;
    }
  }
  if (quote != '\0') return invalid(fmt::format("the launcher \"{}\" lacks a quote", launcher));
  if (!named)
    return invalid(fmt::format("the launcher \"{}\" does not say where {{host}} goes", launcher));
  return words;
}

Result<RosterOptions> elastic_roster(const ElasticOptions& options, int count,
                                     const std::vector<Host>& hosts) {
  constexpr Duration kHeartbeatMin = std::chrono::milliseconds(100);
  RosterOptions roster;
  if (!options.schedule.empty()) {
    auto schedule = parse_size_schedule(options.schedule);
    if (!schedule) return invalid("--schedule: " + schedule.error().message);
    roster.schedule = std::move(*schedule);
  }
  uint32_t largest = std::max(static_cast<uint32_t>(count), options.max);
  for (const ScheduledSize& entry : roster.schedule) largest = std::max(largest, entry.size);
  if (hosts.empty()) {
    if (largest == 0) return invalid("how many workers? give -n N, or hosts with -H or --hostfile");
    if (options.max != 0) largest = std::max(static_cast<uint32_t>(count), options.max);
    if (largest > 65535) return invalid(fmt::format("{} workers are too many for a host", largest));
    roster.hosts.push_back({"localhost", static_cast<uint16_t>(largest)});
  }
  uint32_t slots = hosts.empty() ? largest : 0;
  for (const Host& host : hosts) {
    roster.hosts.push_back({host.name, static_cast<uint16_t>(host.slots)});
    slots += static_cast<uint32_t>(host.slots);
  }
  roster.min = options.min == 0 ? 1 : options.min;
  roster.max = options.max == 0 ? slots : options.max;
  if (roster.max > slots)
    return invalid(
        fmt::format("--max {}: there are only {} slots; add hosts or slots", roster.max, slots));
  if (roster.min > roster.max)
    return invalid(fmt::format("--min {} is more than --max {}", roster.min, roster.max));
  const bool scheduled = !roster.schedule.empty() && roster.schedule[0].step == 0;
  if (scheduled && count != 0 && static_cast<uint32_t>(count) != roster.schedule[0].size)
    return invalid(fmt::format("-n {} contradicts the schedule, which begins with {}", count,
                               roster.schedule[0].size));
  roster.initial = count != 0  ? static_cast<uint32_t>(count)
                   : scheduled ? roster.schedule[0].size
                               : roster.max;
  if (roster.initial < roster.min)
    return invalid(fmt::format("-n {} is less than --min {}", roster.initial, roster.min));
  if (roster.initial > roster.max)
    return invalid(fmt::format("{} workers are more than --max {}", roster.initial, roster.max));
  for (const ScheduledSize& entry : roster.schedule) {
    if (entry.size < roster.min || entry.size > roster.max)
      return invalid(fmt::format("the schedule asks for {} members; --min is {}, --max is {}",
                                 entry.size, roster.min, roster.max));
  }
  if (options.heartbeat < kHeartbeatMin)
    return invalid(fmt::format("a heartbeat of {} is too short; 0.1 s is the least",
                               human_duration(options.heartbeat)));
  roster.heartbeat = options.heartbeat;
  roster.restarts = options.restarts;
  return roster;
}

}  // namespace pliant
