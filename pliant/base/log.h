// One line on standard error for people: "[pliant] warning: ...". The level is set once, at the
// edge. Any thread.
#pragma once

#include <string_view>

namespace pliant {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
void set_log_prefix(std::string_view prefix);  // for example "rank 2"

void log(LogLevel level, std::string_view message);

}  // namespace pliant
