// Text to train on, as bytes: files as they are, and the text files of folders. Immutable once it
// is read: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pliant/data/dataset.h"

namespace pliant::train {

// One behind the other: each file, and of each folder its .md, .txt and .rst files, also those of
// its folders, by name. Throws TrainingError for a path that cannot be read or has no text.
std::vector<uint8_t> read_text(const std::vector<std::string>& paths);

// A text cut into windows, as pliant/data/token_file.h cuts files of tokens: a sample is block + 1
// bytes, as numbers of 64 bits, and shares one with the next.
class TextBlocks final : public Dataset {
 public:
  // Throws TrainingError if the text does not fill one.
  TextBlocks(std::vector<uint8_t> text, uint64_t block);

  uint64_t size() const override { return (text_.size() - 1) / block_; }
  size_t sample_bytes() const override { return (block_ + 1) * sizeof(int64_t); }
  Status read(const Sample& sample, std::span<std::byte> to) const override;

 private:
  const std::vector<uint8_t> text_;
  const uint64_t block_;
};

}  // namespace pliant::train
