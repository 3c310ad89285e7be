#include "cli/top_screen.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/job_client.h"
#include "pliant/base/bytes.h"

namespace pliant::cli {
namespace {

double in_ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

std::string change_line(const ChangeDurations& change) {
  return fmt::format(
      "last change: detect {:.1f} ms, agree {:.1f} ms, redo {:.1f} ms, transfer {:.1f} ms ({})",
      in_ms(change.detect_ns), in_ms(change.agree_ns), in_ms(change.redo_ns),
      in_ms(change.transfer_ns), human_bytes(change.transfer_bytes));
}

// As many members as fit, and a word on the others.
void add_members(const TopState& state, size_t room, std::vector<std::string>& lines) {
  std::vector<std::string> members = member_lines(state.status, state.now_ms);
  if (members.size() > room && room > 0) {
    const size_t hidden = members.size() - (room - 1);
    members.resize(room - 1);
    members.push_back(fmt::format("       and {} more", hidden));
  }
  lines.insert(lines.end(), members.begin(), members.end());
}

// Cuts at a character, not inside one: bytes of the form 10xxxxxx continue one.
std::string cut(std::string line, size_t columns) {
  size_t characters = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xc0) == 0x80) continue;
    if (++characters > columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

std::vector<std::string> top_lines(const TopState& state, size_t columns, size_t rows) {
  const JobReport& status = state.status;
  std::vector<std::string> lines = {
      fmt::format("pliant top: job {}", printable(status.job)),
      summary(status),
      fmt::format("{} views, {} joins, {} losses", status.views_total, status.joins_total,
                  status.losses_total),
      change_line(status.last_change),
      "",
  };
  // Half of the rest for members at most, so that events are seen in a large job, too.
  const size_t rest = rows > lines.size() + 2 ? rows - lines.size() - 2 : 0;
  const size_t wanted = status.members.size() + 1;
  add_members(state,
              std::min(wanted, std::max(rest / 2, rest - std::min(rest, state.events.size()))),
              lines);
  lines.emplace_back();
  const size_t room = rows > lines.size() + 1 ? rows - lines.size() - 1 : 0;
  const size_t shown = std::min(room, state.events.size());
  for (size_t i = state.events.size() - shown; i < state.events.size(); ++i)
    lines.push_back(event_line(state.events[i]));
  if (lines.size() + 1 > rows) lines.resize(rows > 0 ? rows - 1 : 0);
  if (rows > 0) lines.push_back(state.notice.empty() ? "q ends" : printable(state.notice));
  for (std::string& line : lines) line = cut(std::move(line), columns);
  return lines;
}

std::string top_picture(const std::vector<std::string>& lines) {
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : "\r\n") + lines[i] + "\x1b[K";
  return text + "\x1b[J";
}

}  // namespace pliant::cli
