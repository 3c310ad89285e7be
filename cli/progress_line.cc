#include "cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "pliant/base/bytes.h"

namespace pliant::cli {
namespace {

using namespace std::chrono_literals;
constexpr Duration kOnTerminal = 100ms;
constexpr Duration kElsewhere = 10s;

}  // namespace

std::string progress_text(const std::string& what, uint64_t done, uint64_t total, double seconds) {
  const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  std::string text = fmt::format("{}: {:.0f} %, {} of {}", what, 100 * share, human_bytes(done),
                                 human_bytes(total));
  if (seconds > 0)
    text += fmt::format(", {}/s",
                        human_bytes(static_cast<uint64_t>(static_cast<double>(done) / seconds)));
  return text;
}

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1), began_(now()), last_(began_) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && shown_) fmt::print(stderr, "\r\033[K");
}

void ProgressLine::show(uint64_t done, uint64_t total) {
  const Instant at = now();
  if (at - last_ < (terminal_ ? kOnTerminal : kElsewhere)) return;
  last_ = at;
  shown_ = true;
  const std::string text = progress_text(what_, done, total, seconds(at - began_));
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", text, terminal_ ? "\033[K" : "\n");
  std::fflush(stderr);
}

}  // namespace pliant::cli
