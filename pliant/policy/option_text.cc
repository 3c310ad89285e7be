#include "pliant/policy/option_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace pliant {
namespace {

constexpr size_t kWordsMax = 16;

// One reader for each kind of field; each says what it wants.
struct Reader {
  const OptionField& option;
  std::string_view text;

  template <typename T>
  Status operator()(T* field) const {
    T value{};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_whole =
        !text.empty() && problem == std::errc() && end == text.data() + text.size();
    const auto number = static_cast<double>(value);
    if (!is_whole || !std::isfinite(number) || number < option.least || number > option.most)
      return invalid(fmt::format("{}={}: it must be {} from {:.15g} to {:.15g}", option.name, text,
                                 std::is_integral_v<T> ? "a whole number" : "a number",
                                 option.least, option.most));
    *field = value;
    return {};
  }
  Status operator()(const ChoiceField& field) const {
    const auto word = std::ranges::find(field.words, text);
    if (word == field.words.end())
      return invalid(fmt::format("{}={}: it must be one of {}", option.name, text,
                                 fmt::join(field.words, ", ")));
    *field.index = static_cast<uint8_t>(word - field.words.begin());
    return {};
  }
  Status operator()(const WordsField& field) const {
    std::vector<std::string> words;
    std::string_view rest = text;
    while (true) {
      const std::string_view word = rest.substr(0, rest.find('|'));
      if (word.empty() || words.size() == kWordsMax)
        return invalid(fmt::format("{}={}: it must be 1 to {} words with bars between them",
                                   option.name, text, kWordsMax));
      words.emplace_back(word);
      if (word.size() == rest.size()) break;
      rest.remove_prefix(word.size() + 1);
    }
    *field.words = std::move(words);
    return {};
  }
};

struct Writer {
  std::string operator()(const int* field) const { return fmt::format("{}", *field); }
  std::string operator()(const uint64_t* field) const { return fmt::format("{}", *field); }
  std::string operator()(const double* field) const { return fmt::format("{:.6g}", *field); }
  std::string operator()(const ChoiceField& field) const {
    return std::string(field.words[*field.index]);
  }
  std::string operator()(const WordsField& field) const {
    return fmt::format("{}", fmt::join(*field.words, "|"));
  }
};

}  // namespace

Status read_options(std::string_view owner, std::string_view text,
                    std::span<const OptionField> fields) {
  if (text.empty()) return {};
  std::vector<bool> is_read(fields.size());
  while (true) {
    const std::string_view word = text.substr(0, text.find(','));
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const auto option = std::ranges::find(fields, name, &OptionField::name);
    if (equals == std::string_view::npos || option == fields.end()) {
      std::vector<std::string_view> names;
      for (const OptionField& field : fields) names.push_back(field.name);
      return invalid(fmt::format("'{}' is no option of {}; write OPTION=VALUE with one of {}", word,
                                 owner, fmt::join(names, ", ")));
    }
    const auto index = static_cast<size_t>(option - fields.begin());
    if (is_read[index]) return invalid(fmt::format("{}: {} is given twice", owner, name));
    is_read[index] = true;
    const Status status = std::visit(Reader{*option, word.substr(equals + 1)}, option->field);
    if (!status.ok()) return invalid(fmt::format("{}: {}", owner, status.error().message));
    if (word.size() == text.size()) return {};
    text.remove_prefix(word.size() + 1);
  }
}

std::string describe_options(std::span<const OptionField> fields) {
  std::string text;
  for (const OptionField& field : fields)
    text += fmt::format("    {:<32} {}\n",
                        fmt::format("{}={}", field.name, std::visit(Writer{}, field.field)),
                        field.meaning);
  return text;
}

}  // namespace pliant
