// The decoder of cost models: whatever the bytes, it returns; what it accepts has one encoding and
// leads to a choice.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "pliant/base/check.h"
#include "pliant/collective/cost.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant;
  const Bytes bytes = std::as_bytes(std::span(data, size));
  const auto model = decode_cost_model(bytes);
  if (!model) return 0;
  PLIANT_CHECK(std::ranges::equal(encode(*model), bytes), "a cost model has one encoding");
  const PeerId members[] = {{0, 0, 1}, {0, 1, 1}, {1, 0, 1}, {2, 0, 1}};
  const Group group = make_group(members, members[0], Epoch{1});
  Signature signature;
  signature.count = 1 << 20;
  const Choice choice = choose(signature, group, *model);
  PLIANT_CHECK(std::isfinite(choice.predicted_s) && choice.predicted_s > 0,
               "every decoded model predicts a time");
  return 0;
}
