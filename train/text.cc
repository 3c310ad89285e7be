#include "train/text.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "train/training_error.h"

namespace pliant::train {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBytesMax = uint64_t{1} << 30;  // larger texts belong into token files

bool is_text(const fs::path& path) {
  const std::string suffix = path.extension().string();
  return suffix == ".md" || suffix == ".txt" || suffix == ".rst";
}

std::vector<fs::path> texts_below(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && is_text(entry.path())) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

void append(std::vector<uint8_t>& text, const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw TrainingError("the text '" + path.string() + "' cannot be read");
  text.insert(text.end(), std::istreambuf_iterator<char>(file), {});
  if (text.size() > kBytesMax)
    throw TrainingError("the text is longer than 1 GiB at '" + path.string() + "'");
}

}  // namespace

std::vector<uint8_t> read_text(const std::vector<std::string>& paths) {
  std::vector<uint8_t> text;
  for (const std::string& path : paths) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) throw TrainingError("there is no text '" + path + "'");
    if (!fs::is_directory(status)) {
      append(text, path);
      continue;
    }
    const std::vector<fs::path> found = texts_below(path);
    if (found.empty())
      throw TrainingError("the folder '" + path + "' has no .md, .txt or .rst file");
    for (const fs::path& file : found) append(text, file);
  }
  return text;
}

TextBlocks::TextBlocks(std::vector<uint8_t> text, uint64_t block)
    : text_(std::move(text)), block_(block) {
  if (text_.size() <= block)
    throw TrainingError("the text has " + std::to_string(text_.size()) +
                        " bytes, too few for one block of " + std::to_string(block));
}

Status TextBlocks::read(const Sample& sample, std::span<std::byte> to) const {
  const uint8_t* const from = text_.data() + sample.index * block_;
  for (size_t i = 0; i <= block_; ++i) {
    const int64_t token = from[i];
    std::memcpy(to.data() + i * sizeof token, &token, sizeof token);
  }
  return {};
}

}  // namespace pliant::train
