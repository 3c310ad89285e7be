// What the heads of HTTP requests and responses have in common as text. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace pliant {

inline constexpr std::string_view kLineEnd = "\r\n";
inline constexpr std::string_view kHeadEnd = "\r\n\r\n";

// Letters of ASCII alone, whatever the locale is: names of header fields have no others.
std::string lower(std::string_view text);

// Without the blanks and tabs around it; a line's end is none of them, so that a stray one in a
// field's value is not lost unseen.
std::string_view trimmed(std::string_view text);

}  // namespace pliant
