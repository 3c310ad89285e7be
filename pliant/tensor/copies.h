// How many ranks of a layout hold an element: what survives if some of them are lost. Pure; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pliant/tensor/box.h"
#include "pliant/tensor/layout.h"

namespace pliant::tensor {

// Elements of a tensor that few ranks hold.
struct Scarce {
  size_t tensor = 0;  // in the layout's collection
  Box box = {};

  bool operator==(const Scarce&) const = default;
};

// The first tensor of which some element is on fewer than `ranks` ranks, and such elements of it.
// Padding is no element. `tensors`: of each tensor, whether it is looked at; empty: all are.
std::optional<Scarce> find_scarce(const Layout& layout, size_t ranks,
                                  const std::vector<bool>& tensors = {});

}  // namespace pliant::tensor
