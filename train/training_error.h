// What train/ throws: one human sentence, as libtorch throws c10::Error. Values; any thread.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "pliant/base/result.h"

namespace pliant::train {

class TrainingError final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The edge between results, which the core returns, and exceptions.
inline void check(const Status& status) {
  if (!status.ok()) throw TrainingError(to_string(status.error()));
}

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) throw TrainingError(to_string(result.error()));
  return std::move(*result);
}

}  // namespace pliant::train
