// Pickles, whole and as the metadata of a DCP checkpoint: whatever the bytes, an answer in bounded
// memory, and nothing is executed (there is nothing that could).
#include <cstdint>
#include <span>

#include "pliant/store/dcp.h"
#include "pliant/store/pickle.h"
#include "tests/fuzz/allocation_bound.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant::store;
  const pliant::fuzz::AllocationBound bound(size);
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto pickle = Pickle::decode(bytes); pickle.ok()) {
    PLIANT_CHECK(pickle->values() <= size + 8, "each value has at least a byte");
    PickleWalk walk(4 * size, 4 * size);
    PLIANT_CHECK(!to_json(pickle->root(), walk).empty());
  }
  if (const auto metadata = decode_dcp_metadata(bytes); metadata.ok()) {
    for (const DcpTensor& tensor : metadata->tensors) {
      PLIANT_CHECK(tensor.boxes.size() == tensor.places.size(), "each piece has a place");
      const Box all = pliant::tensor::whole(tensor.info.shape);
      for (const Box& box : tensor.boxes)
        PLIANT_CHECK(pliant::tensor::contains(all, box), "a piece lies in its tensor");
      for (const DcpLocation& place : tensor.places)
        PLIANT_CHECK(!place.file.starts_with('/') && !place.file.starts_with("../"),
                     "no file is outside the folder");
    }
  }
  return 0;
}
