#include "pliant/tensor/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace pliant::tensor {
namespace {

constexpr size_t kTextMax = 512;
constexpr size_t kDigitsMax = 9;

}  // namespace

Result<Pattern> Pattern::parse(std::string_view text) {
  if (text.empty()) return invalid("a pattern is empty; '*' stands for any name");
  if (text.size() > kTextMax)
    return invalid(fmt::format("a pattern of {} bytes; the limit is {}", text.size(), kTextMax));
  const std::string_view all = text;
  Pattern made;
  while (!text.empty()) {
    if (text[0] == '*') {
      if (made.parts_.empty() || made.parts_.back().kind != Kind::kAny)
        made.parts_.push_back({Kind::kAny});
      text.remove_prefix(1);
    } else if (text[0] == '{') {
      const size_t close = text.find('}');
      const std::string_view word = text.substr(0, close == text.npos ? close : close + 1);
      const bool is_layer = word == "{layer}";
      if (!is_layer && word != "{expert}")
        return invalid(
            fmt::format("pattern '{}': '{}' stands for nothing; there are {{layer}} and "
                        "{{expert}}",
                        all, word));
      const Kind kind = is_layer ? Kind::kLayer : Kind::kExpert;
      if (made.has(kind)) return invalid(fmt::format("pattern '{}' has {} twice", all, word));
      made.parts_.push_back({kind});
      text.remove_prefix(word.size());
    } else {
      const size_t length = std::min(text.find_first_of("*{"), text.size());
      made.parts_.push_back({Kind::kText, std::string(text.substr(0, length))});
      text.remove_prefix(length);
    }
  }
  return made;
}

bool Pattern::has(Kind kind) const {
  return std::ranges::any_of(parts_, [&](const Part& part) { return part.kind == kind; });
}

bool Pattern::take(const Part& part, std::string_view& rest, NameNumbers& numbers) {
  if (part.kind == Kind::kText) {
    if (!rest.starts_with(part.text)) return false;
    rest.remove_prefix(part.text.size());
    return true;
  }
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits > kDigitsMax) return false;
  uint32_t number = 0;
  std::from_chars(rest.data(), rest.data() + digits, number);
  (part.kind == Kind::kLayer ? numbers.layer : numbers.expert) = number;
  rest.remove_prefix(digits);
  return true;
}

std::optional<NameNumbers> Pattern::match(std::string_view name) const {
  NameNumbers numbers;
  size_t next = 0;
  std::string_view rest = name;
  // Where to go on when a part does not match: behind the last "*", which then takes one more
  // character. Earlier ones need not: they stopped at the first place that matched.
  size_t behind_any = parts_.size() + 1;
  std::string_view rest_behind_any;
  while (next < parts_.size() || !rest.empty()) {
    if (next < parts_.size() && parts_[next].kind == Kind::kAny) {
      behind_any = ++next;
      rest_behind_any = rest;
    } else if (next < parts_.size() && take(parts_[next], rest, numbers)) {
      ++next;
    } else {
      if (behind_any > parts_.size() || rest_behind_any.empty()) return std::nullopt;
      rest_behind_any.remove_prefix(1);
      rest = rest_behind_any;
      next = behind_any;
    }
  }
  return numbers;
}

Result<std::vector<size_t>> select(const Collection& collection,
                                   std::span<const std::string> patterns) {
  std::vector<bool> is_chosen(collection.size(), patterns.empty());
  for (const std::string& text : patterns) {
    const auto pattern = Pattern::parse(text);
    if (!pattern) return pattern.error();
    bool any = false;
    for (size_t i = 0; i < collection.size(); ++i)
      if (pattern->match(collection[i].name)) any = is_chosen[i] = true;
    if (!any) return invalid(fmt::format("no tensor matches '{}'", text));
  }
  std::vector<size_t> numbers;
  for (size_t i = 0; i < collection.size(); ++i)
    if (is_chosen[i]) numbers.push_back(i);
  return numbers;
}

}  // namespace pliant::tensor
