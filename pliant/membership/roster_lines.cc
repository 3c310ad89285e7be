#include <fmt/format.h>

#include <algorithm>

#include "pliant/membership/roster.h"

namespace pliant {
namespace {

constexpr size_t kNamedMax = 4;

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kNamedMax); ++i)
    text += (i == 0 ? "" : ", ") + parts[i];
  if (parts.size() > kNamedMax) text += fmt::format(" and {} more", parts.size() - kNamedMax);
  return text;
}

}  // namespace

// A line waits, up to a limit, for the numbers that rank 0 reports and for the reasons of the ends.
void Roster::print_changes(Instant now) {
  while (!changes_.empty()) {
    const Change& change = changes_.front();
    const bool reasons = std::all_of(change.gone.begin(), change.gone.end(),
                                     [](const Change::Gone& gone) { return gone.final_; });
    if (now < change.due && !(change.numbers && reasons)) return;
    actions_.push_back(RosterAction::Say{line_of(change)});
    changes_.erase(changes_.begin());
  }
}

std::string Roster::line_of(const Change& change) {
  std::vector<std::string> news;
  for (const Change::Gone& gone : change.gone) news.push_back(gone.who + " " + gone.reason);
  std::string line = list(news);
  if (!change.joined.empty())
    line += fmt::format("{}{} joined", line.empty() ? "" : "; ", list(change.joined));
  line += fmt::format("{}{} {}, epoch {}", line.empty() ? "" : ": ", change.size,
                      change.size == 1 ? "member goes on" : "members go on", number(change.epoch));
  if (!change.numbers) return line;
  line += "; agree " + human_duration(change.numbers->agree);
  if (change.numbers->redo > Duration(0)) line += ", redo " + human_duration(change.numbers->redo);
  if (change.numbers->transfer_bytes > 0)
    line += fmt::format(", transfer {} ({})", human_duration(change.numbers->transfer),
                        human_bytes(change.numbers->transfer_bytes));
  return line;
}

}  // namespace pliant
