// A line that shows how far long work has come: overwritten on a terminal, now and then a new one
// elsewhere. Owned by the command that works; one thread.
#pragma once

#include <cstdint>
#include <string>

#include "pliant/base/time.h"

namespace pliant::cli {

class ProgressLine final {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();  // clears the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(uint64_t done, uint64_t total);

 private:
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  Instant began_;
  Instant last_;
};

// "convert: 45 %, 1.2 GiB of 2.7 GiB, 800 MiB/s"; pure.
std::string progress_text(const std::string& what, uint64_t done, uint64_t total, double seconds);

}  // namespace pliant::cli
