// A Pattern: which tensors a rule is for, by their names. "*" stands for any text, "{layer}" and
// "{expert}" for a number that the rule needs to know. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/tensor/collection.h"

namespace pliant::tensor {

// The numbers in a name.
struct NameNumbers {
  std::optional<uint32_t> layer = {};
  std::optional<uint32_t> expert = {};

  bool operator==(const NameNumbers&) const = default;
};

class Pattern {
 public:
  static Result<Pattern> parse(std::string_view text);

  // The numbers, if the whole name matches. A number takes all digits that it meets.
  std::optional<NameNumbers> match(std::string_view name) const;

  bool has_layer() const { return has(Kind::kLayer); }
  bool has_expert() const { return has(Kind::kExpert); }

 private:
  enum class Kind : uint8_t { kText, kAny, kLayer, kExpert };
  struct Part {
    Kind kind = Kind::kText;
    std::string text = {};
  };
  bool has(Kind kind) const;
  // Matches one part that is not kAny at the front of `rest`, and removes it there.
  static bool take(const Part& part, std::string_view& rest, NameNumbers& numbers);

  std::vector<Part> parts_;
};

// The numbers of the tensors whose names match one of the patterns; of all, if there is none. A
// pattern that nothing matches is an error. For people who choose some.
Result<std::vector<size_t>> select(const Collection& collection,
                                   std::span<const std::string> patterns);

}  // namespace pliant::tensor
