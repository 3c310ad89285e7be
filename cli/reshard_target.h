// For which layout `pliant reshard` writes: that of a file, of a known model, or of the checkpoint
// itself with other sizes of axes. Apart from reading files, pure; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/store/checkpoint.h"
#include "pliant/tensor/collection.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/presets.h"
#include "pliant/tensor/rules.h"

namespace pliant::cli {

struct TargetArguments {
  std::string to = {};      // sizes of axes
  std::string model = {};   // of which model,
  std::string layout = {};  // or of the layout in which file; neither: of that beside the source
  uint32_t slots = 8;       // ranks on each host
  bool allow_missing = false;
};

// Reads "tp=4,pp=2".
Result<std::vector<tensor::Axis>> parse_axes(std::string_view text);

// The same rules over a mesh of other sizes: those given, and 1 for the other axes. Pipeline stages
// get equal numbers of layers, or numbers that differ by one, if their number changes.
Result<tensor::LayoutSpec> with_sizes(tensor::LayoutSpec spec,
                                      const std::vector<tensor::Axis>& sizes, uint32_t slots);

// The tensors of a checkpoint in the order of the model's. Refuses other names and other shapes,
// and tensors of the model that are not there unless `allow_missing`; types are those of the
// checkpoint.
Result<tensor::Collection> in_order_of(const tensor::Model& model,
                                       const tensor::Collection& checkpoint, bool allow_missing);

Result<tensor::Layout> target_layout(const TargetArguments& arguments,
                                     const store::Checkpoint& source);

}  // namespace pliant::cli
