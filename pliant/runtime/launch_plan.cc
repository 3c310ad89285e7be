// What `pliant run` works out before it starts anything.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pliant/runtime/http_fetch.h"
#include "pliant/runtime/launch.h"
#include "pliant/runtime/revocation.h"

namespace pliant {
namespace {

// True if there was a {host} to be replaced.
bool replace_host(std::string& text, const std::string& host) {
  constexpr std::string_view kHost = "{host}";
  bool named = false;
  for (size_t at = 0; (at = text.find(kHost, at)) != std::string::npos; at += host.size()) {
    text.replace(at, kHost.size(), host);
    named = true;
  }
  return named;
}

}  // namespace

Result<std::vector<std::string>> launcher_words(const std::string& launcher,
                                                const std::string& host) {
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
  for (std::string& text : words) named = replace_host(text, host) || named;
  if (quote != '\0') return invalid(fmt::format("the launcher \"{}\" lacks a quote", launcher));
  if (!named)
    return invalid(fmt::format("the launcher \"{}\" does not say where {{host}} goes", launcher));
  return words;
}

Result<RevocationOptions> revocation_for(const RevocationOptions& options,
                                         const std::string& host) {
  constexpr Duration kPollMin = std::chrono::milliseconds(10);
  const auto provider = parse_cloud_provider(options.provider);
  if (!provider) return invalid("--revocation: " + provider.error().message);
  RevocationOptions result = options;
  if (*provider == CloudProvider::kNone) {
    if (!options.metadata_url.empty() || options.poll_ns != 0)
      return invalid(
          "--metadata-url and --revocation-poll need a cloud: give --revocation aws, gcp or azure");
    return result;
  }
  if (result.poll_ns == 0) result.poll_ns = kRevocationPoll.count();
  if (Duration(result.poll_ns) < kPollMin)
    return invalid(fmt::format("--revocation-poll: {} is too often; 10ms is the least",
                               human_duration(Duration(result.poll_ns))));
  if (result.metadata_url.empty()) result.metadata_url = kMetadataUrl;
  replace_host(result.metadata_url, host);
  if (const auto base = parse_http_base(result.metadata_url); !base)
    return invalid("--metadata-url: " + base.error().message);
  return result;
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
  if (options.host_failures != 0) roster.places.failures_max = options.host_failures;
  return roster;
}

}  // namespace pliant
