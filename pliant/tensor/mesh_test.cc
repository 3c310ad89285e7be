#include "pliant/tensor/mesh.h"

#include <gtest/gtest.h>

#include <array>

namespace pliant::tensor {
namespace {

std::string fault(std::vector<Axis> axes) {
  const auto mesh = Mesh::make(std::move(axes), 0);
  return mesh ? "" : mesh.error().message;
}

TEST(Mesh, TheLastAxisIsTheFastest) {
  const auto mesh = Mesh::make({{"pp", 2}, {"dp", 3}, {"tp", 4}}, 8);
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->size(), 24u);
  EXPECT_EQ(mesh->coordinate(13, 0), 1u);
  EXPECT_EQ(mesh->coordinate(13, 1), 0u);
  EXPECT_EQ(mesh->coordinate(13, 2), 1u);
  EXPECT_EQ(mesh->host_of(7), 0u);
  EXPECT_EQ(mesh->host_of(8), 1u);
  EXPECT_EQ(mesh->hosts_end(), 3u);
  EXPECT_EQ(mesh->find("dp"), 1u);
  EXPECT_FALSE(mesh->find("ep"));
}

TEST(Mesh, AGroupOfAxesCountsAsOne) {
  const auto mesh = Mesh::make({{"pp", 2}, {"dp", 3}, {"tp", 4}}, 0);
  ASSERT_TRUE(mesh.ok());
  const AxisGroup group(*mesh, std::array{2u, 0u});  // tp slow, pp fast
  EXPECT_EQ(group.size(), 8u);
  for (Rank rank = 0; rank < 24; ++rank) {
    const uint32_t index = mesh->coordinate(rank, 2) * 2 + mesh->coordinate(rank, 0);
    EXPECT_EQ(group.index_of(rank), index);
    const Rank first = rank - group.offset_of(index);
    EXPECT_EQ(group.index_of(first), 0u);
    EXPECT_EQ(mesh->coordinate(first, 1), mesh->coordinate(rank, 1));
  }
  EXPECT_EQ(AxisGroup().index_of(5), 0u);
}

TEST(Mesh, WithoutAxesThereIsOneRank) {
  const auto mesh = Mesh::make({}, 0);
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->size(), 1u);
}

TEST(Mesh, RefusesBadAxesByName) {
  EXPECT_NE(fault({{"tp", 0}}).find("'tp'"), std::string::npos);
  EXPECT_NE(fault({{"tp", 2}, {"tp", 2}}).find("'tp' twice"), std::string::npos);
  EXPECT_NE(fault({{"T P", 2}}).find("lower-case"), std::string::npos);
  EXPECT_NE(fault({{"a", 60000}, {"b", 60000}}).find("65536"), std::string::npos);
  EXPECT_NE(fault(std::vector<Axis>(17, {"a", 1})).find("17 axes"), std::string::npos);
}

// A mesh that does not match the members.
TEST(Mesh, NeedsAHostForEachRank) {
  const auto mesh = Mesh::make_on({{"dp", 3}}, {0, 1});
  ASSERT_FALSE(mesh.ok());
  EXPECT_NE(mesh.error().message.find("3 ranks, but the hosts of 2"), std::string::npos);
  EXPECT_FALSE(Mesh::make_on({{"dp", 1}}, {70000}).ok());
}

}  // namespace
}  // namespace pliant::tensor
