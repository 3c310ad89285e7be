// Small work on text. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pliant {

// Letters of ASCII alone, whatever the locale is.
std::string lower(std::string_view text);

// Without the characters of `blanks` at either end.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n");

// What stands between the commas; a text without any is one item, also if it is empty.
std::vector<std::string> comma_separated(std::string_view text);

}  // namespace pliant
