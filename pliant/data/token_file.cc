#include "pliant/data/token_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "pliant/base/check.h"

namespace pliant {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

Status check_type(DType dtype) {
  if (dtype == DType::kU16 || dtype == DType::kU32) return {};
  return invalid(fmt::format("token ids are u16 or u32, not {}", to_string(dtype)));
}

// The place of the first token that is not below the vocabulary; the end if there is none.
template <typename Token>
size_t widen(Bytes window, uint64_t vocabulary, int64_t* to) {
  const size_t count = window.size() / sizeof(Token);
  bool all_known = true;
  for (size_t i = 0; i < count; ++i) {
    Token token{};
    std::memcpy(&token, window.data() + i * sizeof(Token), sizeof(Token));
    to[i] = static_cast<int64_t>(token);
    all_known = all_known && token < vocabulary;
  }
  if (all_known || vocabulary == 0) return count;
  return static_cast<size_t>(
      std::find_if(to, to + count,
                   [&](int64_t token) { return static_cast<uint64_t>(token) >= vocabulary; }) -
      to);
}

}  // namespace

Result<std::unique_ptr<const TokenFiles>> TokenFiles::open(std::span<const std::string> paths,
                                                           const TokenFileOptions& options) {
  PLIANT_TRY(check_type(options.dtype));
  if (options.block < 1 || options.block > UINT32_MAX)
    return invalid(fmt::format("a block has 1 to 2^32 - 1 tokens, not {}", options.block));
  if (paths.empty()) return invalid("there are no token files; name at least one");
  std::unique_ptr<TokenFiles> files(new TokenFiles(options));
  for (const std::string& path : paths) PLIANT_TRY(files->add(path));
  return std::unique_ptr<const TokenFiles>(std::move(files));
}

Status TokenFiles::add(const std::string& path) {
  auto mapped = MappedFile::open(path);
  if (!mapped) return mapped.error();
  const uint64_t size_bytes = (*mapped)->bytes().size();
  const size_t width = size_of(options_.dtype);
  if (size_bytes % width != 0)
    return invalid(
        fmt::format("{} has {} bytes, which is no whole number of {} tokens; is it of "
                    "another type, or cut short?",
                    path, size_bytes, to_string(options_.dtype)));
  const uint64_t tokens = size_bytes / width;
  if (tokens < options_.block + 1)
    return invalid(fmt::format(
        "{} has {} tokens, fewer than one sample of {} (a block of {} and the token after it)",
        path, tokens, options_.block + 1, options_.block));
  files_.push_back({std::move(*mapped), samples_});
  tokens_ += tokens;
  samples_ += (tokens - 1) / options_.block;
  return {};
}

const TokenFiles::File& TokenFiles::file_of(uint64_t index) const {
  PLIANT_CHECK(index < samples_, "a sample outside the token files");
  const auto after = std::upper_bound(
      files_.begin(), files_.end(), index,
      [](uint64_t wanted, const File& file) { return wanted < file.first_sample; });
  return *std::prev(after);
}

uint64_t TokenFiles::first_token(const File& file, uint64_t index) const {
  return (index - file.first_sample) * options_.block;
}

Bytes TokenFiles::window(uint64_t index) const {
  const File& file = file_of(index);
  const size_t width = size_of(options_.dtype);
  return file.mapped->bytes().subspan(first_token(file, index) * width,
                                      (options_.block + 1) * width);
}

Status TokenFiles::read(const Sample& sample, std::span<std::byte> to) const {
  if (to.size() != sample_bytes())
    return invalid(fmt::format("a sample of these token files has {} bytes, not {}", sample_bytes(),
                               to.size()));
  const Bytes from = window(sample.index);
  auto* const tokens = reinterpret_cast<int64_t*>(to.data());
  const size_t known = options_.dtype == DType::kU16
                           ? widen<uint16_t>(from, options_.vocabulary, tokens)
                           : widen<uint32_t>(from, options_.vocabulary, tokens);
  if (known == options_.block + 1) return {};
  const File& file = file_of(sample.index);
  return invalid(fmt::format("{} has token {} at position {}, but the vocabulary has {}",
                             file.mapped->path(), tokens[known],
                             first_token(file, sample.index) + known, options_.vocabulary));
}

// ---- Writing ----------------------------------------------------------------------------------

Result<std::unique_ptr<TokenWriter>> TokenWriter::create(const std::string& path, DType dtype) {
  PLIANT_TRY(check_type(dtype));
  FILE* const file = std::fopen((path + ".partial").c_str(), "wbe");
  if (file == nullptr) return system_error("cannot create " + path + ".partial");
  return std::unique_ptr<TokenWriter>(new TokenWriter(path, dtype, file));
}

TokenWriter::TokenWriter(std::string path, DType dtype, FILE* file)
    : path_(std::move(path)), temporary_(path_ + ".partial"), dtype_(dtype), file_(file) {}

TokenWriter::~TokenWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(temporary_.c_str());
}

Status TokenWriter::append(std::span<const uint32_t> tokens) {
  PLIANT_CHECK(file_ != nullptr, "a token file is finished once");
  if (tokens.empty()) return {};
  size_t written = 0;
  if (dtype_ == DType::kU16) {
    const auto wide = std::find_if(tokens.begin(), tokens.end(),
                                   [](uint32_t token) { return token > UINT16_MAX; });
    if (wide != tokens.end())
      return invalid(fmt::format("token {} does not fit into u16; write {} as u32", *wide, path_));
    const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
    written = std::fwrite(narrow.data(), sizeof(uint16_t), narrow.size(), file_);
  } else {
    written = std::fwrite(tokens.data(), sizeof(uint32_t), tokens.size(), file_);
  }
  if (written != tokens.size()) return system_error("cannot write " + temporary_);
  tokens_ += tokens.size();
  return {};
}

Status TokenWriter::finish() {
  PLIANT_CHECK(file_ != nullptr, "a token file is finished once");
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0)
    return system_error("cannot write " + temporary_);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    return system_error(fmt::format("cannot rename {} to {}", temporary_, path_));
  std::fclose(file_);
  file_ = nullptr;
  return {};
}

}  // namespace pliant
