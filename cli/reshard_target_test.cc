#include "cli/reshard_target.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace pliant::cli {
namespace {

using tensor::Axis;
using tensor::Collection;
using tensor::LayoutSpec;
using tensor::TensorInfo;

TEST(ReshardTarget, AxesAreRead) {
  EXPECT_EQ(*parse_axes("tp=4,pp=2"), (std::vector<Axis>{{"tp", 4}, {"pp", 2}}));
  for (const char* bad : {"tp", "tp=", "=4", "tp=0", "tp=-1", "tp=4x", "tp=99999999", "tp=1,tp=2"})
    EXPECT_FALSE(parse_axes(bad).ok()) << bad;
  EXPECT_NE(parse_axes("tp=x").error().message.find("'tp=x'"), std::string::npos);
}

LayoutSpec spec_of(const char* sizes) {
  return *tensor::make_spec(*tensor::find_model("gpt-tiny"), *tensor::parse_parallelism(sizes), 0);
}

TEST(ReshardTarget, SizesThatAreNotNamedAreOne) {
  const auto spec = with_sizes(spec_of("dp=2,tp=2,pp=2"), {{"tp", 4}}, 8);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->mesh.size(), 4U);
  EXPECT_EQ(spec->mesh.axes()[*spec->mesh.find("tp")].size, 4U);
  EXPECT_EQ(spec->mesh.axes()[*spec->mesh.find("dp")].size, 1U);
}

TEST(ReshardTarget, LayersAreSpreadOverOtherStages) {
  const auto three = with_sizes(spec_of("pp=2"), {{"pp", 3}}, 8);
  ASSERT_TRUE(three.ok()) << three.error().message;
  EXPECT_EQ(three->pipeline->counts, (std::vector<uint32_t>{2, 1, 1}));
  const auto four = with_sizes(*three, {{"pp", 4}}, 8);
  EXPECT_TRUE(four->pipeline->counts.empty());
  // The same number of stages keeps what it has.
  LayoutSpec own = spec_of("pp=2");
  own.pipeline->counts = {1, 3};
  EXPECT_EQ(with_sizes(own, {{"pp", 2}, {"tp", 2}}, 8)->pipeline->counts,
            (std::vector<uint32_t>{1, 3}));
  EXPECT_NE(with_sizes(own, {{"pp", 5}}, 8).error().message.find("too few"), std::string::npos);
}

TEST(ReshardTarget, AxesThatAreNotThereAreNamed) {
  const auto spec = with_sizes(spec_of("pp=2"), {{"zero", 1}}, 8);
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.error().message.find("no axis 'zero', but pp, dp, ep, cp, tp"), std::string::npos);
}

Collection state() { return *tensor::make_state(*tensor::find_model("gpt-tiny"), DType::kBF16); }

Result<Collection> ordered(std::vector<TensorInfo> tensors, bool allow_missing = false) {
  return in_order_of(*tensor::find_model("gpt-tiny"), *Collection::make(std::move(tensors)),
                     allow_missing);
}

TEST(ReshardTarget, TensorsAreInTheOrderOfTheModel) {
  std::vector<TensorInfo> tensors = state().tensors();
  std::ranges::reverse(tensors);
  EXPECT_EQ(*ordered(tensors), state());
  // Types are those of the checkpoint.
  tensors[0].dtype = DType::kF16;
  EXPECT_TRUE(ordered(tensors).ok());
  EXPECT_FALSE(*ordered(tensors) == state());
}

TEST(ReshardTarget, LongParametersNeedNoMasterCopies) {
  const Collection all = *tensor::make_state(*tensor::find_model("gpt-tiny"), DType::kF32);
  EXPECT_EQ(*ordered(all.tensors()), all);
}

TEST(ReshardTarget, TensorsThatDoNotFitAreNamed) {
  std::vector<TensorInfo> tensors = state().tensors();
  const auto message = [](const Result<Collection>& result) {
    return result.ok() ? "" : result.error().message;
  };
  tensors.push_back({"foreign", DType::kF32, {1}});
  EXPECT_NE(message(ordered(tensors)).find("'foreign' is none of"), std::string::npos);
  tensors.pop_back();
  std::swap(tensors[0].shape[0], tensors[0].shape[1]);
  EXPECT_NE(message(ordered(tensors)).find("is of shape [32, 100]"), std::string::npos);
  tensors = state().tensors();
  const std::string name = tensors[5].name;
  tensors.erase(tensors.begin() + 5);
  EXPECT_NE(message(ordered(tensors)).find("'" + name + "' of gpt-tiny is not there"),
            std::string::npos);
  EXPECT_TRUE(ordered(tensors, true).ok());
}

}  // namespace
}  // namespace pliant::cli
