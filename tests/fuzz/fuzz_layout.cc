// The text forms of layouts and plans: whatever the text, an answer within limits; and what is
// taken for a layout can be written, read again, laid out and planned with.
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "pliant/base/check.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/plan.h"
#include "pliant/tensor/plan_json.h"
#include "tests/fuzz/allocation_bound.h"

namespace {

using namespace pliant::tensor;

// Large meshes are allowed, but take longer than a fuzzer should.
constexpr uint64_t kRanksMax = 64;

void check_layout(const LayoutDocument& document) {
  const auto again = parse_layout(to_json(document));
  PLIANT_CHECK(again.ok() && *again == document, "a layout survives its text form");
  if (!document.collection || document.spec.mesh.size() > kRanksMax) return;
  const auto layout =
      Layout::make(document.spec, std::make_shared<Collection>(*document.collection));
  if (!layout) return;
  uint64_t elements = 0;
  for (size_t tensor = 0; tensor < layout->collection().size(); ++tensor) {
    uint64_t sum = 0;
    for (const Shard& shard : layout->placement(tensor).shards) {
      PLIANT_CHECK(contains(whole(layout->collection()[tensor].shape), shard.box));
      PLIANT_CHECK(!shard.holders.empty(), "a box is on some rank");
      sum += volume(shard.box);
    }
    PLIANT_CHECK(sum >= layout->collection()[tensor].elements(), "a layout covers its tensors");
    elements += sum;
  }
  const auto plan = make_plan(*layout, *layout);
  if (!plan) return;
  PLIANT_CHECK(plan->totals.bytes_moved == 0, "nothing changes");
  PLIANT_CHECK(elements == 0 || !plan->moves.empty());
  const auto read = parse_plan(to_json(*plan));
  PLIANT_CHECK(read.ok() && read->moves == plan->moves, "a plan survives its text form");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  {
    // The name of a model stands for many tensors; nothing else makes much of little.
    std::optional<pliant::fuzz::AllocationBound> bound;
    if (text.find("model") == text.npos && text.find('\\') == text.npos) bound.emplace(size);
    const auto document = parse_layout(text);
    bound.reset();
    if (document.ok()) check_layout(*document);
  }
  const pliant::fuzz::AllocationBound bound(size);
  if (const auto plan = parse_plan(text); plan.ok())
    PLIANT_CHECK(parse_plan(to_json(*plan)).ok(), "a plan survives its text form");
  return 0;
}
