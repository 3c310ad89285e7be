#include "pliant/store/reshard_local.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/test_layouts.h"

namespace pliant::store {
namespace {

using tensor::Collection;
using tensor::Layout;

std::byte byte_of(size_t tensor, uint64_t at) {
  return static_cast<std::byte>((at * 7 + tensor * 13 + 1) % 251);
}

Status read_box(const Collection& tensors, size_t tensor, const Box& box, std::span<std::byte> to) {
  const TensorInfo& info = tensors[tensor];
  std::vector<std::byte> all(info.bytes());
  for (size_t i = 0; i < all.size(); ++i) all[i] = byte_of(tensor, i);
  copy_common({tensor::whole(info.shape), tensor::strides_of(info.shape), all}, box, to,
              size_of(info.dtype));
  return {};
}

// Element by element, by what a piece is defined to be.
std::vector<std::byte> expected_array(const Layout& layout, const tensor::Holding& holding,
                                      size_t array) {
  const size_t element = size_of(holding.buffers[array].dtype);
  std::vector<std::byte> bytes(holding.buffers[array].elements * element);
  for (const tensor::Piece& piece : holding.pieces) {
    if (piece.buffer != array) continue;
    const auto strides = tensor::strides_of(layout.collection()[piece.tensor].shape);
    Box one = piece.box;
    for (uint64_t i = 0; i < tensor::volume(piece.box); ++i) {
      uint64_t rest = i;
      uint64_t global = 0;
      for (uint32_t d = piece.box.dims; d-- > 0;) {
        one.begin[d] = piece.box.begin[d] + rest % piece.box.extent(d);
        rest /= piece.box.extent(d);
        global += one.begin[d] * strides[d];
      }
      for (size_t b = 0; b < element; ++b)
        bytes[piece.offset_of(one) * element + b] = byte_of(piece.tensor, global * element + b);
    }
  }
  return bytes;
}

TEST(LocalArrays, AreWhatRanksHoldHoweverTheyAreRead) {
  int arrays = 0;
  for (uint64_t seed = 0; seed < 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    tensor::RandomWorld world(seed);
    const auto layout = Layout::make(world.random_spec(), world.collection());
    if (!layout.ok()) continue;
    for (Rank rank = 0; rank < static_cast<Rank>(layout->mesh().size()); ++rank) {
      const auto local = LocalArrays::make(*layout, rank);
      ASSERT_TRUE(local.ok()) << local.error().message;
      const tensor::Holding holding = layout->holding(rank);
      std::set<std::string> names;
      for (size_t i = 0; i < local->arrays().size(); ++i) {
        EXPECT_TRUE(names.insert(local->arrays()[i].name).second) << local->arrays()[i].name;
        const size_t element = size_of(local->arrays()[i].dtype);
        const uint64_t step = 1 + world.chance().below(9);
        std::vector<std::byte> bytes(local->arrays()[i].bytes(), std::byte{0xee});
        for (uint64_t first = 0; first < local->arrays()[i].elements(); first += step) {
          const auto part = std::span(bytes).subspan(
              first * element, std::min<size_t>(step * element, bytes.size() - first * element));
          ASSERT_TRUE(local
                          ->read(i, first, part,
                                 [&](size_t tensor, const Box& box, auto to) {
                                   return read_box(layout->collection(), tensor, box, to);
                                 })
                          .ok());
        }
        EXPECT_EQ(bytes, expected_array(*layout, holding, i)) << local->arrays()[i].name;
        ++arrays;
      }
    }
  }
  EXPECT_GT(arrays, 1000);
}

Result<LocalArrays> padded_with(const std::string& fill, DType dtype) {
  const auto document = tensor::parse_layout(
      R"({"format": "pliant.layout/1", "mesh": {"axes": [{"name": "tp", "size": 2}]},
          "rules": [{"match": "w", "shard": [{"dim": 0, "axes": ["tp"], "padded": 6, "fill": )" +
      fill + "}]}]}");
  PLIANT_CHECK(document.ok(), document.ok() ? "" : document.error().message.c_str());
  const auto layout = Layout::make(
      document->spec, std::make_shared<Collection>(*Collection::make({{"w", dtype, {4}}})));
  PLIANT_CHECK(layout.ok(), layout.ok() ? "" : layout.error().message.c_str());
  return LocalArrays::make(*layout, 1);
}

TEST(LocalArrays, PaddingHoldsWhatTheLayoutSays) {
  const auto nothing = [](size_t, const Box&, std::span<std::byte> to) {
    std::memset(to.data(), 0, to.size());
    return Status();
  };
  const auto f32 = padded_with("1.5", DType::kF32);
  ASSERT_TRUE(f32.ok()) << f32.error().message;
  std::vector<float> numbers(3, 9);
  ASSERT_TRUE(f32->read(0, 0, std::as_writable_bytes(std::span(numbers)), nothing).ok());
  EXPECT_EQ(numbers, (std::vector<float>{0, 1.5, 1.5}));
  const auto bf16 = padded_with("1", DType::kBF16);
  ASSERT_TRUE(bf16.ok()) << bf16.error().message;
  std::vector<uint16_t> halves(3, 9);
  ASSERT_TRUE(bf16->read(0, 0, std::as_writable_bytes(std::span(halves)), nothing).ok());
  EXPECT_EQ(halves, (std::vector<uint16_t>{0, 0x3f80, 0x3f80}));
  EXPECT_TRUE(padded_with("0", DType::kF8E4M3).ok());
  EXPECT_NE(padded_with("1", DType::kF8E4M3).error().message.find("padding of 'w'"),
            std::string::npos);
}

}  // namespace
}  // namespace pliant::store
