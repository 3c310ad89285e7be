// The text form of layouts and collections: JSON, described by docs/layout.schema.json and
// docs/TENSORS.md. Pure; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "pliant/base/result.h"
#include "pliant/tensor/collection.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/rules.h"

namespace pliant::tensor {

inline constexpr const char* kLayoutFormat = "pliant.layout/1";

struct LayoutDocument {
  LayoutSpec spec = {};
  // Without tensors a document is a layout for those of another one.
  std::optional<Collection> collection = {};

  bool operator==(const LayoutDocument&) const = default;
};

// Fails on whatever is not known, with the path of the field. Whether the rules fit the tensors is
// for Layout::make() to say. A document that names a model (presets.h) has its tensors and rules.
Result<LayoutDocument> parse_layout(std::string_view text);

// One line for each tensor and rule; parse_layout() of it gives an equal document.
std::string to_json(const LayoutDocument& document);

}  // namespace pliant::tensor
