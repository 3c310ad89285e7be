#include "pliant/membership/schedule.h"

#include <fmt/format.h>

#include <charconv>

namespace pliant {
namespace {

template <typename T>
bool read_number(std::string_view text, T& value) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && problem == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<std::vector<ScheduledSize>> parse_size_schedule(std::string_view text) {
  std::vector<ScheduledSize> schedule;
  while (true) {
    const std::string_view word = text.substr(0, text.find(','));
    const size_t at = word.find('@');
    ScheduledSize entry;
    if (at == std::string_view::npos || !read_number(word.substr(0, at), entry.size) ||
        !read_number(word.substr(at + 1), entry.step) || entry.size == 0)
      return invalid(
          fmt::format("'{}' is no size and step; write SIZE@STEP,... as in 2@0,4@100", word));
    if (!schedule.empty() && entry.step <= schedule.back().step)
      return invalid(
          fmt::format("step {} does not come after step {}", entry.step, schedule.back().step));
    schedule.push_back(entry);
    if (word.size() == text.size()) return schedule;
    text.remove_prefix(word.size() + 1);
  }
}

}  // namespace pliant
