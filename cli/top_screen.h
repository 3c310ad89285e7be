// The picture that `pliant top` draws, as a value: lines for a terminal of a given size. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "pliant/runtime/event_log.h"
#include "pliant/runtime/job_report.h"

namespace pliant::cli {

struct TopState {
  JobReport status;
  std::deque<Event> events;  // the last kTopEventsMax
  std::string notice;        // instead of the last line: "the job does not answer"
  int64_t now_ms = 0;
};

inline constexpr size_t kTopEventsMax = 200;

// At most `rows` lines of at most `columns` characters: the state, the members, the last change,
// then as many of the last events as there is room for.
std::vector<std::string> top_lines(const TopState& state, size_t columns, size_t rows);

// The escape codes that put these lines on a terminal without flicker.
std::string top_picture(const std::vector<std::string>& lines);

}  // namespace pliant::cli
