#include "pliant/runtime/reshape_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "pliant/tensor/presets.h"

namespace pliant {
namespace {

using tensor::Layout;

Layout layout_of(const std::string& text, const char* name = "gpt-tiny") {
  const tensor::Model model = *tensor::find_model(name);
  return *Layout::make(*make_spec(model, *tensor::parse_parallelism(text), 0),
                       std::make_shared<const tensor::Collection>(*make_state(model, DType::kF32)));
}

Result<Batches> batches_of(const tensor::Plan& plan, const Layout& from, uint64_t extra) {
  const BatchOrigin origins[] = {{plan, from}};
  return cut_into_batches(origins, extra);
}

// Holds what each member has before, in and after each batch against the promise. Tensors come from
// the given layouts in turn.
void expect_bounded(const std::vector<std::string>& before, const std::string& after,
                    uint64_t extra) {
  const Layout to = layout_of(after);
  const size_t tensors = to.collection().size();
  std::deque<Layout> layouts;
  std::deque<tensor::Plan> plans;
  std::vector<BatchOrigin> origins;
  for (size_t i = 0; i < before.size(); ++i) {
    tensor::PlanOptions options;
    if (before.size() > 1)
      for (size_t t = 0; t < tensors; ++t) options.tensors.push_back(t % before.size() == i);
    const Layout& from = layouts.emplace_back(layout_of(before[i]));
    const tensor::Plan& plan = plans.emplace_back(*make_plan(from, to, options));
    origins.push_back({plan, from, options.tensors});
  }
  const auto batches = cut_into_batches(origins, extra);
  ASSERT_TRUE(batches.ok()) << batches.error().message;
  for (const uint32_t batch : batches->of_tensor) ASSERT_LT(batch, batches->count);
  const auto bytes_in = [](const Layout& layout, Rank rank, auto chosen) {
    uint64_t bytes = 0;
    for (const tensor::Piece& piece : layout.holding(rank).pieces)
      if (chosen(piece.tensor))
        bytes += volume(piece.box) * size_of(layout.collection()[piece.tensor].dtype);
    return bytes;
  };
  const auto old_bytes = [&](Rank rank, auto chosen) {
    uint64_t bytes = 0;
    for (const BatchOrigin& origin : origins)
      bytes += bytes_in(origin.from, rank, [&](size_t t) { return origin.has(t) && chosen(t); });
    return bytes;
  };
  const auto all = [](size_t) { return true; };
  for (Rank rank = 0; rank < static_cast<Rank>(to.mesh().size()); ++rank) {
    uint64_t held = old_bytes(rank, all);
    const uint64_t limit = std::max(held, bytes_in(to, rank, all)) + extra;
    for (uint32_t batch = 0; batch < batches->count; ++batch) {
      const auto chosen = [&](size_t tensor) { return batches->of_tensor[tensor] == batch; };
      held += bytes_in(to, rank, chosen);
      EXPECT_LE(held, limit) << before[0] << " -> " << after << ", batch " << batch;
      held -= old_bytes(rank, chosen);
    }
  }
}

// Of one rank, to choose bounds by.
uint64_t largest_buffer() {
  uint64_t largest = 0;
  for (const tensor::LocalBuffer& buffer : layout_of("dp=4").holding(0).buffers)
    largest = std::max(largest, buffer.elements * size_of(buffer.dtype));
  return largest;
}

TEST(Batches, NoMemberHoldsMoreThanAllowed) {
  const std::string layouts[] = {"tp=4", "pp=4", "dp=2,tp=2", "tp=2,pp=2", "dp=4", "dp=4,zero=1"};
  const uint64_t largest = largest_buffer();
  for (const std::string& from : layouts)
    for (const std::string& to : layouts)
      for (const uint64_t extra : {4 * largest, 8 * largest, uint64_t{1} << 40})
        expect_bounded({from}, to, extra);
}

// As after a change that has failed in the middle.
TEST(Batches, TensorsMayComeFromSeveralLayouts) {
  for (const uint64_t extra : {2 * largest_buffer(), 8 * largest_buffer()}) {
    expect_bounded({"tp=4", "pp=4"}, "dp=2,tp=2", extra);
    expect_bounded({"dp=4", "dp=2,tp=2", "tp=2,pp=2"}, "dp=4,zero=1", extra);
  }
}

// A tenth of what a member gets.
TEST(Batches, ATenthIsEnoughForALargeModel) {
  const std::string layouts[] = {"tp=8", "dp=2,tp=4", "tp=4,pp=2", "dp=8,zero=1",
                                 "dp=4,tp=2,zero=1"};
  for (const std::string& before : layouts) {
    const Layout from = layout_of(before, "gpt3-xl");
    for (const std::string& after : layouts) {
      const Layout to = layout_of(after, "gpt3-xl");
      uint64_t least = UINT64_MAX;
      for (Rank rank = 0; rank < 8; ++rank) least = std::min(least, to.holding(rank).bytes());
      const auto batches = batches_of(*make_plan(from, to), from, least / 10);
      EXPECT_TRUE(batches.ok()) << before << " -> " << after << ": "
                                << (batches ? "" : batches.error().message);
    }
  }
}

TEST(Batches, OneIsEnoughIfThereIsRoom) {
  const Layout from = layout_of("tp=4");
  const auto plan = make_plan(from, layout_of("pp=4"));
  EXPECT_EQ(batches_of(*plan, from, uint64_t{1} << 40)->count, 1u);
  EXPECT_GT(batches_of(*plan, from, uint64_t{64} << 10)->count, 1u);
}

TEST(Batches, TooLittleIsSaid) {
  const Layout from = layout_of("tp=4");
  const auto batches = batches_of(*make_plan(from, layout_of("pp=4")), from, 100);
  ASSERT_FALSE(batches.ok());
  EXPECT_NE(batches.error().message.find("100 B of additional memory are too little for '"),
            std::string::npos);
}

}  // namespace
}  // namespace pliant
