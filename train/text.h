// Text to train on, as bytes: files as they are, and the text files of folders. Read once, before
// the training; values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pliant::train {

// One behind the other: each file, and of each folder its .md, .txt and .rst files, also those of
// its folders, by name. Throws TrainingError for a path that cannot be read or has no text.
std::vector<uint8_t> read_text(const std::vector<std::string>& paths);

}  // namespace pliant::train
