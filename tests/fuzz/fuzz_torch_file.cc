// Files of torch.save, as zip archives and as the pickles in them: whatever the bytes, every entry
// and every tensor that is found lies inside the file.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pliant/store/test_torch.h"
#include "pliant/store/torch_file.h"
#include "pliant/store/zip.h"
#include "tests/fuzz/allocation_bound.h"

namespace {

using namespace pliant::store;

// A view of the storage that the tensor is in; reads the first and the last element.
void look(pliant::Bytes file, const TorchTensor& tensor) {
  PLIANT_CHECK(tensor.offset <= file.size() && tensor.size_bytes <= file.size() - tensor.offset,
               "a tensor lies in its file");
  const auto elements = file.subspan(tensor.offset, tensor.size_bytes);
  Box first = pliant::tensor::whole(tensor.info.shape);
  if (pliant::tensor::is_empty(first)) return;
  Box last = first;
  for (uint32_t d = 0; d < first.dims; ++d) {
    first.end[d] = 1;
    last.begin[d] = last.end[d] - 1;
  }
  const size_t element = size_of(tensor.info.dtype);
  std::byte value[8] = {};
  const PieceView view{pliant::tensor::whole(tensor.info.shape), tensor.strides, elements};
  copy_common(view, first, std::span(value).first(element), element);
  copy_common(view, last, std::span(value).first(element), element);
}

void look_at_all(pliant::Bytes file) {
  const auto contents = decode_torch_file(file);
  if (!contents.ok()) return;
  for (const TorchTensor& tensor : contents->tensors) look(file, tensor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const pliant::fuzz::AllocationBound bound(size);
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto zip = ZipArchive::open(bytes); zip.ok()) {
    uint64_t total = 0;
    for (const ZipEntry& entry : zip->entries()) {
      total += zip->contents(entry).size();
      (void)zip->check(entry);
      PLIANT_CHECK(zip->find(entry.name) == &entry, "an entry is found by its name");
    }
    PLIANT_CHECK(total <= size, "entries share no bytes");
  }
  look_at_all(bytes);
  // The same bytes as the structure of a good archive, which mutations break too easily.
  const std::string_view structure(reinterpret_cast<const char*>(data), size);
  const std::string archive = make_zip({{"a/data.pkl", std::string(structure)},
                                        {"a/data/0", std::string(168, 'x')},
                                        {"a/data/1", std::string(80, 'y')}});
  look_at_all(std::as_bytes(std::span(archive)));
  return 0;
}
