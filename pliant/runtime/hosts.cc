#include "pliant/runtime/hosts.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <set>

#include "pliant/base/text.h"

namespace pliant {
namespace {

constexpr int kSlotsMax = 65535;       // PeerId::slot has 16 bits
constexpr size_t kHostsMax = 65536;    // more than that is a wrong file
constexpr size_t kNameBytesMax = 255;  // of a DNS name

Error wrong_host(std::string_view text, std::string_view why) {
  return invalid(fmt::format(
      "'{}' is no host: {}; write name:slots or name:slots@address, IPv6 in brackets", text, why));
}

bool is_address(const std::string& text) {
  in6_addr parsed{};
  return inet_pton(AF_INET, text.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &parsed) == 1;
}

// A name goes into the command that reaches the host, so it may not look like an option.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
         });
}

// Takes "[...]" or what stands before one of `ends` off the front of `rest`.
std::string take_part(std::string_view& rest, const char* ends) {
  std::string part;
  const size_t close = rest.starts_with('[') ? rest.find(']') : std::string_view::npos;
  if (close != std::string_view::npos) {
    part = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
  } else {
    part = rest.substr(0, rest.find_first_of(ends));
    rest.remove_prefix(part.size());
  }
  return part;
}

Status parse_slots(std::string_view text, int& slots) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (problem != std::errc() || end != text.data() + text.size() || slots < 1 || slots > kSlotsMax)
    return invalid(fmt::format("'{}' is no number of slots from 1 to {}", text, kSlotsMax));
  return {};
}

Result<Host> parse_host(std::string_view text) {
  Host host;
  std::string_view rest = text;
  const bool bracketed = rest.starts_with('[');
  host.name = take_part(rest, ":@");
  const bool numeric = is_address(host.name);
  if (bracketed && !numeric) return wrong_host(text, "the brackets hold no address");
  if (!numeric && !is_name(host.name)) return wrong_host(text, "the name is empty or malformed");
  if (rest.starts_with(':')) {
    rest.remove_prefix(1);
    if (auto status = parse_slots(take_part(rest, ":@"), host.slots); !status)
      return wrong_host(text, status.error().message);
  }
  if (rest.starts_with('@') || rest.starts_with(':')) {
    rest.remove_prefix(1);
    host.address = take_part(rest, "@");
    if (!is_address(host.address))
      return wrong_host(text, fmt::format("'{}' is no numeric address", host.address));
  }
  if (!rest.empty()) return wrong_host(text, fmt::format("'{}' is left over", rest));
  if (host.address.empty() && numeric) host.address = host.name;
  return host;
}

// Reads "name slots=4 address=10.0.0.1", in which the first word may be any form of parse_host().
Result<Host> parse_line(std::string_view line) {
  Result<Host> host = invalid("");
  bool first = true;
  while (!(line = trimmed(line)).empty()) {
    const std::string_view word = line.substr(0, line.find_first_of(" \t"));
    line.remove_prefix(word.size());
    if (first) {
      host = parse_host(word);
      if (!host) return host;
      first = false;
    } else if (word.starts_with("slots=")) {
      if (auto status = parse_slots(word.substr(6), host->slots); !status)
        return wrong_host(word, status.error().message);
    } else if (word.starts_with("address=")) {
      host->address = word.substr(8);
      if (!is_address(host->address)) return wrong_host(word, "it is no numeric address");
    } else {
      return wrong_host(word, "it is neither slots= nor address=");
    }
  }
  return host;
}

Status add_host(std::vector<Host>& hosts, std::set<std::string>& names, Host host) {
  if (!names.insert(host.name).second)
    return invalid(
        fmt::format("host '{}' is named twice; give it all its slots at once", host.name));
  if (hosts.size() == kHostsMax) return invalid(fmt::format("more than {} hosts", kHostsMax));
  hosts.push_back(std::move(host));
  return {};
}

}  // namespace

Result<std::vector<Host>> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  while (true) {
    const size_t comma = text.find(',');
    auto host = parse_host(trimmed(text.substr(0, comma)));
    if (!host) return host.error();
    PLIANT_TRY(add_host(hosts, names, std::move(*host)));
    if (comma == std::string_view::npos) return hosts;
    text.remove_prefix(comma + 1);
  }
}

Result<std::vector<Host>> parse_hostfile(std::string_view text) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    auto host = parse_line(line);
    Status status = host ? add_host(hosts, names, std::move(*host)) : Status(host.error());
    if (!status) return invalid(fmt::format("line {}: {}", number, status.error().message));
  }
  if (hosts.empty()) return invalid("it names no host");
  return hosts;
}

Result<std::vector<WorkerPlace>> place_workers(const std::vector<Host>& hosts, int count) {
  if (count < 1) return invalid(fmt::format("{} workers: at least one is needed", count));
  int64_t slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  if (count > slots) {
    return invalid(
        fmt::format("{} workers do not fit into {} slot{} on {} host{}; add hosts or slots", count,
                    slots, slots == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s"));
  }
  std::vector<WorkerPlace> places;
  for (size_t number = 0; number < hosts.size(); ++number) {
    for (int slot = 0; slot < hosts[number].slots && std::ssize(places) < count; ++slot) {
      const PeerId id = {.host = static_cast<uint32_t>(number),
                         .slot = static_cast<uint16_t>(slot),
                         .incarnation = 1};
      places.push_back({id, hosts[number].name});
    }
  }
  return places;
}

bool is_local(const Host& host, std::string_view machine_name) {
  return host.name == "localhost" || host.name == "::1" || host.name == machine_name ||
         (is_address(host.name) && host.name.starts_with("127."));
}

}  // namespace pliant
