// Files of token ids: raw little-endian numbers of 16 or 32 bits without a header, as language
// models are commonly trained from. They are mapped, never read whole; several are one dataset.
//
// A sample is a window of block + 1 tokens, of which the first `block` are a model's input and the
// last `block` its targets. Windows begin every `block` tokens, so that every token but the first
// of a file is the target of exactly one sample, except for a rest at its end that fills no window.
// None reaches from one file into the next.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/dtype.h"
#include "pliant/base/mapped_file.h"
#include "pliant/base/result.h"
#include "pliant/data/dataset.h"

namespace pliant {

struct TokenFileOptions {
  DType dtype = DType::kU16;  // or kU32
  uint64_t block = 0;         // at least 1
  // If it is known, a sample with a token that is not below it is refused when it is read.
  uint64_t vocabulary = 0;
};

// Immutable: any thread.
class TokenFiles final : public Dataset {
 public:
  // kInvalid names the file that is missing, has no whole number of tokens, or fills no window.
  static Result<std::unique_ptr<const TokenFiles>> open(std::span<const std::string> paths,
                                                        const TokenFileOptions& options);

  uint64_t tokens() const { return tokens_; }  // of all files
  uint64_t block() const { return options_.block; }
  uint64_t size() const override { return samples_; }
  // A sample is block + 1 numbers of 64 bits with a sign, by which embeddings are looked up.
  size_t sample_bytes() const override { return (options_.block + 1) * sizeof(int64_t); }
  Status read(const Sample& sample, std::span<std::byte> to) const override;
  // The window as it lies in its file; index < size().
  Bytes window(uint64_t index) const;

 private:
  struct File {
    std::shared_ptr<const MappedFile> mapped;
    uint64_t first_sample = 0;
  };
  explicit TokenFiles(const TokenFileOptions& options) : options_(options) {}
  Status add(const std::string& path);
  const File& file_of(uint64_t index) const;
  uint64_t first_token(const File& file, uint64_t index) const;

  TokenFileOptions options_;
  std::vector<File> files_;
  uint64_t tokens_ = 0;
  uint64_t samples_ = 0;
};

// Writes such a file, which has its name only once it is complete. Owned by whoever writes; one
// thread at a time.
class TokenWriter final {
 public:
  // In place of a file of that name, if there is one.
  static Result<std::unique_ptr<TokenWriter>> create(const std::string& path, DType dtype);
  ~TokenWriter();  // deletes what was not finished
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // kInvalid if a token does not fit into the type; none of them is written then.
  Status append(std::span<const uint32_t> tokens);
  uint64_t tokens() const { return tokens_; }
  // The file is on the disk and has its name.
  Status finish();

 private:
  TokenWriter(std::string path, DType dtype, FILE* file);

  const std::string path_;
  const std::string temporary_;
  const DType dtype_;
  FILE* file_;  // null once it is finished
  uint64_t tokens_ = 0;
};

}  // namespace pliant
