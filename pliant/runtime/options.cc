#include "pliant/runtime/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>

#include "pliant/base/bytes.h"
#include "pliant/runtime/job_report.h"

namespace pliant {
namespace {

constexpr int kMembersLimit = 65536;

using Variables = std::map<std::string, std::string>;

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size();
}

Result<TransportChoice> parse_transport(const std::string& text) {
  if (text == "auto") return TransportChoice::kAuto;
  if (text == "shm") return TransportChoice::kShm;
  if (text == "tcp") return TransportChoice::kTcp;
  return invalid(fmt::format("'{}' is no transport: choose auto, shm or tcp", text));
}

const char* to_text(TransportChoice transport) {
  switch (transport) {
    case TransportChoice::kAuto: return "auto";
    case TransportChoice::kShm: return "shm";
    case TransportChoice::kTcp: return "tcp";
  }
  return "auto";
}

Result<int> parse_count(const std::string& text, int least, int most) {
  int value = 0;
  if (!parse_number(text, value) || value < least || value > most)
    return invalid(fmt::format("'{}' is no number from {} to {}", text, least, most));
  return value;
}

// The steps of "2@0,4@100".
Result<std::vector<uint64_t>> parse_schedule_steps(const std::string& text) {
  std::vector<uint64_t> steps;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string_view part = std::string_view(text).substr(start, end - start);
    const size_t at = part.find('@');
    uint64_t step = 0;
    if (at == std::string_view::npos || !parse_number(part.substr(at + 1), step))
      return invalid(
          fmt::format("'{}' is no schedule: it is SIZE@STEP,..., as in 2@0,4@100", text));
    steps.push_back(step);
    start = end + 1;
  }
  return steps;
}

// Reads one variable at a time and remembers the first that cannot be read.
class Variable {
 public:
  explicit Variable(const Variables& variables) : variables_(variables) {}

  template <typename T, typename Parse>
  void read(const char* name, T& value, Parse parse) {
    const auto at = variables_.find(name);
    if (at == variables_.end() || !status_.ok()) return;
    auto parsed = parse(at->second);
    if (parsed.ok()) {
      value = static_cast<T>(*parsed);
    } else {
      status_ = invalid(fmt::format("{}: {}", name, parsed.error().message));
    }
  }
  void read(const char* name, std::string& value) {
    read(name, value, [](const std::string& text) { return Result<std::string>(text); });
  }
  Status take() { return std::move(status_); }

 private:
  const Variables& variables_;
  Status status_;
};

}  // namespace

Result<SessionOptions> options_from(const Variables& variables) {
  SessionOptions options;
  Variable variable(variables);
  variable.read("PLIANT_COORDINATOR", options.coordinator);
  variable.read("PLIANT_JOB", options.job);
  variable.read("PLIANT_TOKEN", options.token);
  variable.read("PLIANT_PEER", options.self, parse_peer_id);
  variable.read("PLIANT_HOST", options.host);
  variable.read("PLIANT_ADDRESS", options.address);
  variable.read("PLIANT_TRANSPORT", options.transport, parse_transport);
  variable.read("PLIANT_STRATEGY", options.strategy);
  variable.read("PLIANT_TIMEOUT", options.timeout, parse_duration);
  variable.read("PLIANT_JOIN_TIMEOUT", options.join_timeout, parse_duration);
  variable.read("PLIANT_CONNECTIONS", options.connections,
                [](const std::string& text) { return parse_count(text, 1, 64); });
  variable.read("PLIANT_HEAP", options.heap_bytes_max, parse_bytes);
  variable.read("PLIANT_STORE_WINDOW", options.store_window,
                [](const std::string& text) { return parse_count(text, 1, 1'000'000); });
  variable.read("PLIANT_ELASTIC", options.elastic,
                [](const std::string& text) { return parse_count(text, 0, 1); });
  variable.read("PLIANT_HEARTBEAT", options.heartbeat, parse_duration);
  variable.read("PLIANT_SCHEDULE", options.report_steps, parse_schedule_steps);
  variable.read("PLIANT_MEMBERS_MIN", options.members_min,
                [](const std::string& text) { return parse_count(text, 1, kMembersLimit); });
  variable.read("PLIANT_MEMBERS_MAX", options.members_max,
                [](const std::string& text) { return parse_count(text, 0, kMembersLimit); });
  variable.read("PLIANT_STORE", options.store);
  variable.read("PLIANT_LIFE_FD", options.life_fd,
                [](const std::string& text) { return parse_count(text, 0, 1 << 20); });
  PLIANT_TRY(variable.take());
  return options;
}

Variables environment_variables() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (text.starts_with("PLIANT_") && equals != std::string_view::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Result<SessionOptions> options_from_environment() { return options_from(environment_variables()); }

Variables to_environment(const SessionOptions& options) {
  // The shortest text that reads back as the same duration.
  const auto duration = [](Duration value) {
    return value % std::chrono::milliseconds(1) == Duration(0)
               ? fmt::format("{}ms", value / std::chrono::milliseconds(1))
               : fmt::format("{:.9f}s", seconds(value));
  };
  return {
      {"PLIANT_COORDINATOR", options.coordinator},
      {"PLIANT_JOB", options.job},
      {"PLIANT_TOKEN", options.token},
      {"PLIANT_PEER", to_string(options.self)},
      {"PLIANT_HOST", options.host},
      {"PLIANT_ADDRESS", options.address},
      {"PLIANT_TRANSPORT", to_text(options.transport)},
      {"PLIANT_STRATEGY", options.strategy},
      {"PLIANT_TIMEOUT", duration(options.timeout)},
      {"PLIANT_JOIN_TIMEOUT", duration(options.join_timeout)},
      {"PLIANT_CONNECTIONS", std::to_string(options.connections)},
      {"PLIANT_HEAP", std::to_string(options.heap_bytes_max)},
      {"PLIANT_STORE_WINDOW", std::to_string(options.store_window)},
      {"PLIANT_ELASTIC", options.elastic ? "1" : "0"},
      {"PLIANT_HEARTBEAT", duration(options.heartbeat)},
  };
}

}  // namespace pliant
