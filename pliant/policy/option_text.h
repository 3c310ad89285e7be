// Reads options that users write, NAME=VALUE,..., into the fields of a struct, and describes them.
// Values that borrow the struct; any thread. make_policy owns them while it reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pliant/base/result.h"

namespace pliant {

// A field that takes one of some words, by its index.
struct ChoiceField {
  uint8_t* index;
  std::vector<std::string_view> words;
};

// Words between bars, "ring|star@1".
struct WordsField {
  std::vector<std::string>* words;
};

// A field, its name for users, and the values that it may have (numbers alone).
struct OptionField {
  std::string_view name;
  std::variant<int*, uint64_t*, double*, ChoiceField, WordsField> field;
  double least = 0;
  double most = 0;
  std::string_view meaning;
};

// Nothing, or OPTION=VALUE,...; each option at most once. `owner` is named in errors.
Status read_options(std::string_view owner, std::string_view text,
                    std::span<const OptionField> fields);

// "  name=2     meaning", a line each, with the values that the fields have.
std::string describe_options(std::span<const OptionField> fields);

}  // namespace pliant
