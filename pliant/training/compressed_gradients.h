// The gradients of one bucket on their way through a compressed all-reduce
// (collective/compression.h): what is sent, what is kept for the next step, and the quanta that
// members share.
//
// Why this stays sound when members are lost. What all must know alike, the quanta, is registered
// state: it changes in take() alone, by what the committed result and the number of contributors
// say, which are the same everywhere. How a bucket is sent is fixed when the step begins, so that
// a step that is run again, and what dead members have left behind, is of the same kind. The levels
// are those of the view in which this member began the step; views only shrink within a step, so
// that the sum of all that count fits, whoever is lost. A residual changes in take(), too: with
// Step::more() the sum of old and further samples is compressed anew from the residual of before.
// A member that dies takes its residual with it: at most a few quanta of each element.
//
// Owned by a Synchroniser; called by the thread that trains.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pliant/collective/compression.h"
#include "pliant/runtime/session.h"

namespace pliant {

class CompressedGradients final {
 public:
  // Borrows the gradients.
  CompressedGradients(std::string name, std::span<float> gradients);

  // Of int8: zeroes as long as they are unknown, which is sent exactly.
  std::span<float> quanta() { return quanta_; }

  // A step with so many members; kNone sends exactly, with what was kept.
  void begin(Compression compression, int members);
  uint64_t sent_bytes() const;
  // Compresses and hands in; again if there are more samples.
  Status hand_in(Step& step);
  // After the commit: the gradients are those of all members over `divisor`.
  Status take(const Step& step, uint64_t divisor);
  // Of what was kept for the next step.
  void forget();

 private:
  Status take_exact(const Step& step, float divisor);
  Status take_bf16(const Step& step);
  Status take_int8(const Step& step, float divisor);

  const std::string name_;
  const std::span<float> gradients_;
  std::vector<float> quanta_;
  std::vector<float> residual_;
  Compression form_ = Compression::kNone;  // of the open step
  int levels_ = 0;
  // What is handed in; one of them a step.
  std::vector<float> exact_;
  std::vector<uint16_t> halves_;
  std::vector<int8_t> bytes_;
};

}  // namespace pliant
