// The marks between the parts of an HTTP message.
#pragma once

#include <string_view>

namespace pliant {

inline constexpr std::string_view kLineEnd = "\r\n";
inline constexpr std::string_view kHeadEnd = "\r\n\r\n";
// What may stand around a field's value. A line's end is none of them, so that a stray one in a
// value is not lost unseen.
inline constexpr std::string_view kFieldBlanks = " \t";

}  // namespace pliant
