#include "pliant/store/stored_tensor.h"

#include <gtest/gtest.h>

#include <random>

namespace pliant::store {
namespace {

Box box_of(const std::vector<uint64_t>& begin, const std::vector<uint64_t>& end) {
  Box box;
  box.dims = static_cast<uint32_t>(begin.size());
  std::ranges::copy(begin, box.begin.begin());
  std::ranges::copy(end, box.end.begin());
  return box;
}

// A box inside `outer`; may be empty.
Box random_box(const Box& outer, std::mt19937& dice) {
  Box box = outer;
  for (uint32_t d = 0; d < outer.dims; ++d) {
    const uint64_t a = outer.begin[d] + dice() % (outer.extent(d) + 1);
    const uint64_t b = outer.begin[d] + dice() % (outer.extent(d) + 1);
    box.begin[d] = std::min(a, b);
    box.end[d] = std::max(a, b);
  }
  return box;
}

void visit_elements(const Box& box, const std::function<void(const Coordinates&)>& visit) {
  if (tensor::is_empty(box)) return;
  Coordinates at = box.begin;
  while (true) {
    visit(at);
    uint32_t d = box.dims;
    while (d > 0 && ++at[d - 1] == box.end[d - 1]) {
      at[d - 1] = box.begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

// Every element is its own coordinates, so a wrong one shows.
template <typename T>
T element_at(const Coordinates& at) {
  uint64_t value = 1;
  for (const uint64_t coordinate : at) value = value * 31 + coordinate;
  return static_cast<T>(value);
}

template <typename T>
void check_copies(std::mt19937& dice) {
  const auto dims = static_cast<uint32_t>(dice() % 5);
  std::vector<uint64_t> shape(dims);
  for (uint64_t& extent : shape) extent = 1 + dice() % 5;
  // A piece with the dimensions in any order and gaps between them.
  PieceView piece{.box = random_box(tensor::whole(shape), dice), .strides = {}, .elements = {}};
  std::vector<uint32_t> order(dims);
  for (uint32_t d = 0; d < dims; ++d) order[d] = d;
  std::shuffle(order.begin(), order.end(), dice);
  uint64_t reach = 1;
  for (const uint32_t d : order) {
    piece.strides[d] = reach * (1 + dice() % 2);
    reach = piece.strides[d] * std::max<uint64_t>(piece.box.extent(d), 1);
  }
  std::vector<T> elements(reach);
  visit_elements(piece.box, [&](const Coordinates& at) {
    uint64_t place = 0;
    for (uint32_t d = 0; d < dims; ++d) place += (at[d] - piece.box.begin[d]) * piece.strides[d];
    elements[place] = element_at<T>(at);
  });
  piece.elements = std::as_bytes(std::span(elements));
  const Box to = random_box(tensor::whole(shape), dice);
  std::vector<T> result(tensor::volume(to));
  copy_common(piece, to, std::as_writable_bytes(std::span(result)), sizeof(T));
  size_t place = 0;
  visit_elements(to, [&](const Coordinates& at) {
    bool inside = true;
    for (uint32_t d = 0; d < dims; ++d)
      inside = inside && at[d] >= piece.box.begin[d] && at[d] < piece.box.end[d];
    ASSERT_EQ(result[place++], inside ? element_at<T>(at) : T{});
  });
}

TEST(StoredTensor, CopiesAnyBoxOfAnyStridedPiece) {
  std::mt19937 dice(1);
  for (int i = 0; i < 2000 && !testing::Test::HasFailure(); ++i) {
    check_copies<uint8_t>(dice);
    check_copies<uint16_t>(dice);
    check_copies<uint32_t>(dice);
    check_copies<uint64_t>(dice);
  }
}

TEST(StoredTensor, RunsCoverABoxOnceAndInOrder) {
  std::mt19937 dice(2);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint64_t> shape(dice() % 4);
    for (uint64_t& extent : shape) extent = 1 + dice() % 6;
    const Box box = random_box(tensor::whole(shape), dice);
    const uint64_t elements_max = 1 + dice() % 10;
    uint64_t next = 0;
    std::vector<Coordinates> visited;
    ASSERT_TRUE(for_each_run(box, elements_max, [&](const Box& part, uint64_t first) {
                  EXPECT_EQ(first, next);
                  EXPECT_LE(tensor::volume(part), elements_max);
                  next += tensor::volume(part);
                  visit_elements(part, [&](const Coordinates& at) { visited.push_back(at); });
                  return Status();
                }).ok());
    std::vector<Coordinates> all;
    visit_elements(box, [&](const Coordinates& at) { all.push_back(at); });
    ASSERT_EQ(visited, all);
  }
}

TEST(StoredTensor, RunsEndAtTheFirstError) {
  int calls = 0;
  const Status status = for_each_run(
      tensor::whole(std::vector<uint64_t>{10}), 1,
      [&](const Box&, uint64_t) { return ++calls == 3 ? Status(invalid("enough")) : Status(); });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(calls, 3);
}

TEST(StoredTensor, PiecesMustCoverATensorOnce) {
  StoredTensor tensor{.info = {"w", DType::kF32, {4, 6}}};
  const auto add = [&](const std::vector<uint64_t>& begin, const std::vector<uint64_t>& end) {
    tensor.pieces.push_back({.box = box_of(begin, end)});
  };
  add({0, 0}, {4, 2});
  add({0, 2}, {2, 6});
  const Status missing = check_cover(tensor);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("[2:4, 2:6]"), std::string::npos)
      << missing.error().message;
  add({2, 2}, {4, 6});
  EXPECT_TRUE(check_cover(tensor).ok());
  add({2, 2}, {2, 6});  // empty
  EXPECT_TRUE(check_cover(tensor).ok());
  add({3, 5}, {4, 6});
  const Status twice = check_cover(tensor);
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.error().message.find("overlap"), std::string::npos);
  tensor.pieces.pop_back();
  tensor.pieces.back().box.end[0] = 9;
  EXPECT_FALSE(check_cover(tensor).ok());
}

TEST(StoredTensor, ATensorWithoutDimensionsHasOnePiece) {
  StoredTensor tensor{.info = {"s", DType::kF32, {}}};
  EXPECT_FALSE(check_cover(tensor).ok());
  tensor.pieces.push_back({.box = tensor::whole({})});
  EXPECT_TRUE(check_cover(tensor).ok());
  tensor.pieces.push_back({.box = tensor::whole({})});
  EXPECT_FALSE(check_cover(tensor).ok());
}

TEST(StoredTensor, SizesDoNotOverflow) {
  EXPECT_EQ(size_in_bytes(DType::kF32, std::vector<uint64_t>{2, 3}), 24U);
  EXPECT_EQ(size_in_bytes(DType::kF32, {}), 4U);
  EXPECT_EQ(size_in_bytes(DType::kF32, std::vector<uint64_t>{0, 3}), 0U);
  EXPECT_FALSE(size_in_bytes(DType::kF32, std::vector<uint64_t>{uint64_t{1} << 62, 4}));
  EXPECT_FALSE(size_in_bytes(DType::kF32, std::vector<uint64_t>{0, UINT64_MAX}));
  EXPECT_FALSE(size_in_bytes(DType::kU8, std::vector<uint64_t>(9, 1)));
}

}  // namespace
}  // namespace pliant::store
