// Headers of safetensors files and of their indexes: whatever the bytes, an answer; what is
// accepted obeys the rules of the format and is written as it was read.
#include <cstdint>
#include <span>
#include <string>

#include "pliant/store/safetensors.h"
#include "pliant/store/safetensors_folder.h"
#include "tests/fuzz/allocation_bound.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant::store;
  const pliant::fuzz::AllocationBound bound(size);
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = decode_safetensors(bytes, size);
  if (!header.ok()) {
    PLIANT_CHECK(!header.error().message.empty(), "a refusal says why");
  } else {
    uint64_t at = header->data_offset;
    for (const SafetensorsEntry& entry : header->tensors) {
      PLIANT_CHECK(entry.offset == at, "tensors lie side by side");
      at += entry.info.bytes();
    }
    PLIANT_CHECK(at == size, "the last one ends with the file");
    const std::string text = encode(*header);
    const uint64_t file_bytes = text.size() + (at - header->data_offset);
    std::string file = text;
    file.resize(file_bytes);
    const auto again = decode_safetensors(std::as_bytes(std::span(file)), file_bytes);
    PLIANT_CHECK(again.ok() && again->metadata == header->metadata &&
                     again->tensors.size() == header->tensors.size(),
                 "what is written is read");
  }
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto index = decode_safetensors_index(text); index.ok()) {
    for (const auto& [name, file] : *index)
      PLIANT_CHECK(file.find('/') == std::string::npos, "no file is outside the folder");
  }
  (void)decode_dcp_sharding(text);
  (void)decode_values(text);
  return 0;
}
