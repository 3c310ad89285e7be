#include "pliant/store/vault.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pliant/store/test_vault.h"

namespace pliant::store {
namespace {

const std::vector<uint64_t> kShape = {4, 6};
const Box kAll = box_of({{0, 4}, {0, 6}});

std::vector<int32_t> read(const Version& version, const std::string& name, const Box& box) {
  std::vector<int32_t> values(tensor::volume(box), -1);
  const Status status =
      version.read(version.find(name).value(), box, std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(status.ok()) << to_string(status.error());
  return values;
}

std::vector<int32_t> expected(const Box& box, int32_t first = 0) {
  const TestPiece piece = counted("w", kShape, box, first);
  std::vector<int32_t> values(piece.elements.size() / sizeof(int32_t));
  std::ranges::copy(piece.elements, std::as_writable_bytes(std::span(values)).begin());
  return values;
}

std::vector<uint64_t> steps_of(const Vault& vault) {
  std::vector<uint64_t> steps;
  for (const auto& version : vault.versions()) steps.push_back(version->step());
  return steps;
}

VaultPart whole_part(int32_t first = 0) { return part_of({counted("w", kShape, kAll, first)}); }

TEST(Version, ReadsAnyRangeAcrossPieces) {
  Vault vault({});
  // Columns on one writer, rows on the other, and a replica that overlaps both.
  ASSERT_TRUE(vault
                  .add({7, 1, 0, 2}, part_of({counted("w", kShape, box_of({{0, 2}, {0, 3}})),
                                              counted("w", kShape, box_of({{0, 2}, {3, 6}}))}))
                  .ok());
  EXPECT_TRUE(vault.versions().empty());
  ASSERT_TRUE(vault
                  .add({7, 1, 1, 2}, part_of({counted("w", kShape, box_of({{2, 4}, {0, 6}})),
                                              counted("w", kShape, box_of({{1, 3}, {2, 5}}))}))
                  .ok());
  const auto version = vault.find(7);
  ASSERT_TRUE(version.ok());
  for (uint64_t a = 0; a < 4; ++a)
    for (uint64_t b = a; b <= 4; ++b)
      for (uint64_t c = 0; c < 6; ++c)
        for (uint64_t d = c; d <= 6; ++d) {
          const Box box = box_of({{a, b}, {c, d}});
          EXPECT_EQ(read(**version, "w", box), expected(box)) << to_string(box);
        }
  EXPECT_EQ((*version)->covered(0).value(), 24U);
  EXPECT_TRUE((*version)->verify().ok());
}

TEST(Version, SaysWhatNoPieceHas) {
  Vault vault({});
  ASSERT_TRUE(
      vault.add({7, 1, 0, 1}, part_of({counted("w", kShape, box_of({{0, 4}, {0, 3}}))})).ok());
  const Version& version = **vault.find(7);
  std::vector<std::byte> room(4 * 4 * 4);
  const Status missing = version.read(0, box_of({{0, 4}, {1, 5}}), room);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("[0:4, 3:5] of tensor 'w'"), std::string::npos)
      << missing.error().message;
  EXPECT_FALSE(version.read(0, box_of({{0, 4}, {3, 7}}), room).ok());  // outside
  EXPECT_FALSE(version.read(0, box_of({{0, 4}}), room).ok());          // dimensions
  EXPECT_FALSE(version.read(0, box_of({{0, 4}, {0, 2}}), room).ok());  // size
  EXPECT_FALSE(version.find("v").ok());
  EXPECT_EQ(version.covered(0).value(), 12U);
}

TEST(Version, HoldsScalarsAndEmptyTensors) {
  Vault vault({});
  TestPiece empty{{"none", DType::kF32, {0, 4}}, box_of({{0, 0}, {0, 4}}), {}};
  ASSERT_TRUE(vault.add({1, 1, 0, 1}, part_of({counted("step", {}, Box{}, 42), empty})).ok());
  const Version& version = **vault.find(Vault::kNewest);
  EXPECT_EQ(read(version, "step", Box{}), std::vector<int32_t>{42});
  EXPECT_TRUE(version.read(1, empty.box, {}).ok());
}

TEST(Version, VerifyFindsAWrongChecksum) {
  VaultPart part = whole_part();
  part.manifest.pieces[0].checksum ^= 1;
  Vault vault({});
  ASSERT_TRUE(vault.add({1, 1, 0, 1}, part).ok());
  const Status status = (*vault.find(1))->verify();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("tensor 'w', piece [0:4, 0:6]"), std::string::npos);
}

TEST(Vault, AVersionReplacesItsStepOnlyWhenItIsComplete) {
  Vault vault({});
  ASSERT_TRUE(vault.add({1, 1, 0, 1}, whole_part(0)).ok());
  const auto before = vault.find(1);
  ASSERT_TRUE(vault.add({1, 2, 0, 2}, whole_part(100)).ok());
  EXPECT_EQ(*vault.find(1), *before);
  ASSERT_TRUE(vault.add({1, 2, 1, 2}, whole_part(100)).ok());
  EXPECT_EQ(read(**vault.find(1), "w", kAll), expected(kAll, 100));
  EXPECT_EQ(read(**before, "w", kAll), expected(kAll));  // as long as somebody holds it
  EXPECT_EQ(steps_of(vault), std::vector<uint64_t>{1});
}

TEST(Vault, AWithdrawnPartLeavesNothing) {
  Vault vault({});
  const VaultTicket ticket{5, 1, 0, 2};
  ASSERT_TRUE(vault.add(ticket, whole_part()).ok());
  EXPECT_EQ(vault.standing(ticket), Vault::Standing::kUnfinished);
  EXPECT_GT(vault.memory_bytes(), 0U);
  vault.withdraw(ticket);
  EXPECT_EQ(vault.standing(ticket), Vault::Standing::kGone);
  EXPECT_EQ(vault.memory_bytes(), 0U);
  // A complete one stays.
  ASSERT_TRUE(vault.add({5, 1, 0, 1}, whole_part()).ok());
  vault.withdraw({5, 1, 0, 1});
  EXPECT_EQ(vault.standing({5, 1, 0, 1}), Vault::Standing::kComplete);
}

TEST(Vault, LaterEpochsDisplaceUnfinishedVersions) {
  Vault vault({});
  ASSERT_TRUE(vault.add({5, 2, 0, 2}, whole_part()).ok());
  EXPECT_EQ(vault.add({5, 1, 1, 2}, whole_part()).code(), Code::kStaleEpoch);
  EXPECT_EQ(vault.add({5, 2, 1, 3}, whole_part()).code(), Code::kInvalid);
  EXPECT_EQ(vault.add({5, 2, 0, 2}, whole_part()).code(), Code::kInvalid);
  ASSERT_TRUE(vault.add({5, 3, 0, 1}, whole_part(9)).ok());
  EXPECT_EQ(vault.standing({5, 2, 0, 2}), Vault::Standing::kGone);
  EXPECT_EQ(read(**vault.find(5), "w", kAll), expected(kAll, 9));
}

TEST(Vault, KeepsTheNewestVersions) {
  Vault vault({.versions_max = 2});
  for (const uint64_t step : {10, 20, 30, 5})
    ASSERT_TRUE(vault.add({step, 1, 0, 1}, whole_part()).ok());
  EXPECT_EQ(steps_of(vault), (std::vector<uint64_t>{30, 5}));
  EXPECT_EQ((*vault.find(Vault::kNewest))->step(), 5U);  // the training went back
  const auto gone = vault.find(10);
  ASSERT_FALSE(gone.ok());
  EXPECT_NE(gone.error().message.find("30, 5"), std::string::npos);
  ASSERT_TRUE(vault.remove(30).ok());
  EXPECT_EQ(steps_of(vault), std::vector<uint64_t>{5});
  EXPECT_FALSE(vault.remove(30).ok());
}

TEST(Vault, ALimitNeverCostsTheNewestVersion) {
  const uint64_t bytes = whole_part().memory->bytes().size();
  Vault vault({.bytes_max = 2 * bytes, .versions_max = 3});
  ASSERT_TRUE(vault.add({1, 1, 0, 1}, whole_part()).ok());
  ASSERT_TRUE(vault.add({2, 1, 0, 1}, whole_part()).ok());
  ASSERT_TRUE(vault.add({3, 1, 0, 1}, whole_part()).ok());
  EXPECT_EQ(steps_of(vault), (std::vector<uint64_t>{2, 3}));
  const VaultPart large = part_of({counted("w", {100, 6}, box_of({{0, 100}, {0, 6}}))});
  const Status refused = vault.add({4, 1, 0, 1}, large);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), Code::kOverloaded);
  EXPECT_EQ(steps_of(vault), std::vector<uint64_t>{3});
  EXPECT_EQ(vault.standing({4, 1, 0, 1}), Vault::Standing::kGone);
}

TEST(Vault, UnfinishedVersionsAreBounded) {
  Vault vault({});
  for (uint64_t step = 0; step < Vault::kUnfinishedMax; ++step)
    ASSERT_TRUE(vault.add({step, 1, 0, 2}, whole_part()).ok());
  EXPECT_EQ(vault.add({99, 1, 0, 2}, whole_part()).code(), Code::kOverloaded);
  ASSERT_TRUE(vault.add({0, 1, 1, 2}, whole_part()).ok());
  EXPECT_TRUE(vault.add({99, 1, 0, 2}, whole_part()).ok());
}

TEST(Vault, WritersThatDisagreeMakeNoVersion) {
  Vault vault({});
  ASSERT_TRUE(vault.add({1, 1, 0, 2}, whole_part()).ok());
  const Status status =
      vault.add({1, 1, 1, 2}, part_of({counted("w", {6, 4}, box_of({{0, 6}, {0, 4}}))}));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("'w' is i32 [4, 6] to one writer and i32 [6, 4]"),
            std::string::npos);
  EXPECT_TRUE(vault.versions().empty());
  EXPECT_EQ(vault.memory_bytes(), 0U);
  EXPECT_FALSE(vault.add({Vault::kNewest, 1, 0, 1}, whole_part()).ok());
  EXPECT_FALSE(vault.add({1, 1, 1, 1}, whole_part()).ok());
  EXPECT_FALSE(vault.add({1, 1, 0, 0}, whole_part()).ok());
}

TEST(Vault, AVersionHasThePiecesOfItsCopiesToo) {
  Vault vault({.versions_max = 2});
  const auto left = part_of({counted("w", kShape, box_of({{0, 4}, {0, 3}}))});
  const auto right = part_of({counted("w", kShape, box_of({{0, 4}, {3, 6}}))});
  ASSERT_TRUE(vault.add({7, 1, 0, 1}, left).ok());
  EXPECT_EQ((*vault.find(7))->covered(0).value(), 12U);
  ASSERT_TRUE(vault.add_copy(1, *Version::make(7, 1, {right})).ok());
  EXPECT_EQ(read(**vault.find(7), "w", kAll), expected(kAll));
  EXPECT_EQ(vault.own_newest()->covered(0).value(), 12U);
  // Of another epoch: not the same version.
  ASSERT_TRUE(vault.add({8, 2, 0, 1}, left).ok());
  ASSERT_TRUE(vault.add_copy(1, *Version::make(8, 1, {right})).ok());
  EXPECT_EQ((*vault.find(8))->covered(0).value(), 12U);
  // Of each host as many as of this one; what only others have can be found as well.
  ASSERT_TRUE(vault.add_copy(1, *Version::make(9, 2, {right})).ok());
  EXPECT_EQ(steps_of(vault), (std::vector<uint64_t>{9, 7, 8}));
  EXPECT_EQ((*vault.find(7))->covered(0).value(), 12U);
  EXPECT_EQ((*vault.find(Vault::kNewest))->step(), 8U);
  ASSERT_TRUE(vault.remove(9).ok());
  EXPECT_EQ(steps_of(vault), (std::vector<uint64_t>{7, 8}));
}

TEST(Vault, CopiesCountAgainstTheLimit) {
  const uint64_t bytes = whole_part().memory->bytes().size();
  Vault vault({.bytes_max = 2 * bytes, .versions_max = 2});
  ASSERT_TRUE(vault.add({1, 1, 0, 1}, whole_part()).ok());
  ASSERT_TRUE(vault.add_copy(1, *Version::make(1, 1, {whole_part()})).ok());
  EXPECT_EQ(vault.add_copy(2, *Version::make(1, 1, {whole_part()})).code(), Code::kOverloaded);
  EXPECT_EQ(vault.add({2, 1, 0, 1}, whole_part()).code(), Code::kOverloaded);
  EXPECT_EQ(vault.memory_bytes(), 2 * bytes);
}

}  // namespace
}  // namespace pliant::store
