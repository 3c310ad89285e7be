#include "pliant/runtime/reshape_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "pliant/tensor/presets.h"

namespace pliant {
namespace {

using tensor::Layout;

Layout layout_of(const std::string& text, const char* name = "gpt-tiny") {
  const tensor::Model model = *tensor::find_model(name);
  return *Layout::make(*make_spec(model, *tensor::parse_parallelism(text), 0),
                       std::make_shared<const tensor::Collection>(*make_state(model, DType::kF32)));
}

// Holds what each member has before, in and after each batch against the promise.
void expect_bounded(const std::string& before, const std::string& after, uint64_t extra) {
  const Layout from = layout_of(before);
  const Layout to = layout_of(after);
  const tensor::Plan plan = *make_plan(from, to);
  const auto batches = cut_into_batches(plan, from, extra);
  ASSERT_TRUE(batches.ok()) << batches.error().message;
  for (const uint32_t batch : batches->of_tensor) ASSERT_LT(batch, batches->count);
  const auto bytes_in = [](const Layout& layout, Rank rank, auto chosen) {
    uint64_t bytes = 0;
    for (const tensor::Piece& piece : layout.holding(rank).pieces)
      if (chosen(piece.tensor))
        bytes += volume(piece.box) * size_of(layout.collection()[piece.tensor].dtype);
    return bytes;
  };
  const auto all = [](size_t) { return true; };
  for (Rank rank = 0; rank < static_cast<Rank>(to.mesh().size()); ++rank) {
    uint64_t held = bytes_in(from, rank, all);
    const uint64_t limit = std::max(held, bytes_in(to, rank, all)) + extra;
    for (uint32_t batch = 0; batch < batches->count; ++batch) {
      const auto chosen = [&](size_t tensor) { return batches->of_tensor[tensor] == batch; };
      held += bytes_in(to, rank, chosen);
      EXPECT_LE(held, limit) << before << " -> " << after << ", batch " << batch;
      held -= bytes_in(from, rank, chosen);
    }
  }
}

TEST(Batches, NoMemberHoldsMoreThanAllowed) {
  const std::string layouts[] = {"tp=4", "pp=4", "dp=2,tp=2", "tp=2,pp=2", "dp=4", "dp=4,zero=1"};
  uint64_t largest = 0;  // of one rank, to choose bounds by
  for (const tensor::LocalBuffer& buffer : layout_of("dp=4").holding(0).buffers)
    largest = std::max(largest, buffer.elements * size_of(buffer.dtype));
  for (const std::string& from : layouts)
    for (const std::string& to : layouts)
      for (const uint64_t extra : {4 * largest, 8 * largest, uint64_t{1} << 40})
        expect_bounded(from, to, extra);
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
      const auto batches = cut_into_batches(*make_plan(from, to), from, least / 10);
      EXPECT_TRUE(batches.ok()) << before << " -> " << after << ": "
                                << (batches ? "" : batches.error().message);
    }
  }
}

TEST(Batches, OneIsEnoughIfThereIsRoom) {
  const Layout from = layout_of("tp=4");
  const auto plan = make_plan(from, layout_of("pp=4"));
  EXPECT_EQ(cut_into_batches(*plan, from, uint64_t{1} << 40)->count, 1u);
  EXPECT_GT(cut_into_batches(*plan, from, uint64_t{64} << 10)->count, 1u);
}

TEST(Batches, TooLittleIsSaid) {
  const Layout from = layout_of("tp=4");
  const auto batches = cut_into_batches(*make_plan(from, layout_of("pp=4")), from, 100);
  ASSERT_FALSE(batches.ok());
  EXPECT_NE(batches.error().message.find("100 B of additional memory are too little for '"),
            std::string::npos);
}

}  // namespace
}  // namespace pliant
