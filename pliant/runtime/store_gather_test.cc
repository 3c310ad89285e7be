#include "pliant/runtime/store_gather.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pliant/runtime/store_service.h"
#include "pliant/store/test_vault.h"

namespace pliant {
namespace {

using store::box_of;
using store::counted;
using store::part_of;

const std::string kToken(32, 't');
const std::vector<uint64_t> kShape = {6, 4};
const store::Box kAll = box_of({{0, 6}, {0, 4}});

Instant soon() { return now() + std::chrono::seconds(30); }

// Three hosts. Each has two rows of "w", and a tensor of its own.
class GatherTest : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t host = 0; host < 3; ++host) {
      StoreService::Options options;
      options.job = "job";
      options.token = kToken;
      options.http_address = "127.0.0.1";
      options.host = host;
      options.vault.bytes_max = uint64_t{8} << 20;
      hosts_.push_back(std::move(*StoreService::open(options)));
    }
  }
  StoreClient there(uint32_t host) const {
    return StoreClient({"", "job", kToken, host, hosts_[host]->copies_endpoint()});
  }
  void keep(uint32_t host, uint64_t step, uint32_t epoch = 1) const {
    const auto part = part_of({counted("w", kShape, box_of({{2 * host, 2 * host + 2}, {0, 4}})),
                               counted("own" + std::to_string(host), {5}, box_of({{0, 5}}))});
    ASSERT_TRUE(
        StoreClient(hosts_[host]->place()).hand_over({step, epoch, 0, 1}, part, soon()).ok());
  }
  // Host 0 tells the others what it has.
  void tell_outline(uint64_t step) const {
    const std::vector<StorePeer> others = {{1, hosts_[1]->copies_endpoint()},
                                           {2, hosts_[2]->copies_endpoint()}};
    hosts_[0]->know(others, {});
    const auto known = [&](uint32_t host) {
      const auto look = there(host).look(step, soon());
      return look && look->parts.size() == 2;
    };
    while (!known(1) || !known(2)) std::this_thread::yield();
  }
  Result<store::Version::Shared> gather_from(const std::vector<uint32_t>& hosts, uint64_t step,
                                             const std::vector<StoreRange>& wanted = {}) const {
    std::vector<StoreClient> others;
    for (const uint32_t host : hosts) others.push_back(there(host));
    return gather({.step = step,
                   .wanted = wanted,
                   .base = nullptr,
                   .own = nullptr,
                   .others = others,
                   .deadline = soon()});
  }

  std::vector<std::unique_ptr<StoreService>> hosts_;
};

TEST_F(GatherTest, AllHostsHaveAllOfIt) {
  for (uint32_t host = 0; host < 3; ++host) keep(host, 7);
  const auto version = gather_from({0, 1, 2}, store::Vault::kNewest);
  ASSERT_TRUE(version.ok()) << version.error().message;
  EXPECT_TRUE((*version)->verify().ok());
  EXPECT_EQ((*version)->step(), 7U);
  EXPECT_EQ((*version)->tensors().size(), 4U);
  std::vector<std::byte> got(24 * 4);
  ASSERT_TRUE((*version)->read(*(*version)->find("w"), kAll, got).ok());
  EXPECT_EQ(got, counted("w", kShape, kAll).elements);
}

TEST_F(GatherTest, OnlyThePiecesThatAreNeededAreMoved) {
  for (uint32_t host = 0; host < 3; ++host) keep(host, 7);
  const StoreClient own(hosts_[0]->place());
  const auto base = own.fetch(7, soon());
  ASSERT_TRUE(base.ok());
  const std::vector<StoreClient> others = {there(1), there(2)};
  const std::vector<StoreRange> wanted = {{"w", box_of({{1, 3}, {0, 4}})}};
  const auto version = gather({.step = 7,
                               .wanted = wanted,
                               .base = *base,
                               .own = nullptr,
                               .others = others,
                               .deadline = soon()});
  ASSERT_TRUE(version.ok()) << version.error().message;
  EXPECT_EQ((*version)->covered(*(*version)->find("w")).value(), 16U);
  EXPECT_FALSE((*version)->find("own1").ok());
  // Nothing is asked of anybody if it is here, whoever is gone.
  const std::vector<StoreRange> here = {{"own0", {}}};
  hosts_[1].reset();
  const auto same = gather({.step = 7,
                            .wanted = here,
                            .base = *base,
                            .own = nullptr,
                            .others = others,
                            .deadline = soon()});
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(*same, *base);
}

TEST_F(GatherTest, WhatIsLostIsNamed) {
  for (uint32_t host = 0; host < 3; ++host) keep(host, 7);
  tell_outline(7);
  const StoreClient dead = there(0);
  hosts_[0].reset();
  const auto lost = gather_from({1, 2}, 7);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.code(), Code::kInvalid);
  for (const char* text : {"step 7: no host has", "of tensor 'own0' (written on host 0)",
                           "of tensor 'w' (written on host 0)"})
    EXPECT_NE(lost.error().message.find(text), std::string::npos) << lost.error().message;
  EXPECT_EQ(lost.error().message.find("own1"), std::string::npos);
  // One that is asked by its own workers knows the same.
  const StoreClient own(hosts_[1]->place());
  const auto base = own.fetch(7, soon());
  const auto alone = gather(
      {.step = 7, .wanted = {}, .base = *base, .own = &own, .others = {}, .deadline = soon()});
  ASSERT_FALSE(alone.ok());
  EXPECT_NE(alone.error().message.find("of tensor 'own0' (written on host 0)"), std::string::npos);
  // What the others have can be read.
  EXPECT_TRUE(gather_from({1, 2}, 7, {{"own1", {}}, {"w", box_of({{2, 6}, {0, 4}})}}).ok());
  // A host that does not answer is named.
  const std::vector<StoreClient> others = {dead, there(1), there(2)};
  const auto silent = gather({.step = 7,
                              .wanted = {},
                              .base = nullptr,
                              .own = nullptr,
                              .others = others,
                              .deadline = soon()});
  ASSERT_FALSE(silent.ok());
  EXPECT_NE(silent.error().message.find("the store of host 0 cannot be reached"), std::string::npos)
      << silent.error().message;
}

TEST_F(GatherTest, TheNewestIsOfTheLatestEpoch) {
  keep(0, 9, 1);
  keep(1, 7, 2);
  keep(1, 8, 2);
  keep(2, 8, 1);  // another version of the same step
  const auto version = gather_from({0, 1, 2}, store::Vault::kNewest);
  ASSERT_TRUE(version.ok()) << version.error().message;
  EXPECT_EQ((*version)->step(), 8U);
  EXPECT_EQ((*version)->epoch(), 2U);
  EXPECT_EQ((*version)->parts().size(), 1U);
  EXPECT_FALSE(gather_from({0, 1, 2}, 6).ok());
  EXPECT_FALSE(gather_from({0}, 9, {{"none", {}}}).ok());
  EXPECT_FALSE(gather_from({0}, 9, {{"w", box_of({{0, 7}, {0, 4}})}}).ok());
  EXPECT_FALSE(gather_from({}, 9).ok());
}

TEST_F(GatherTest, PullsOfWhatIsNotThereAreRefused) {
  keep(0, 7);
  EXPECT_TRUE(there(0).pull({7, 1, {{0, 0}, {0, 1}}}, soon()).ok());
  for (const StorePull& wrong :
       {StorePull{8, 1, {{0, 0}}}, StorePull{7, 2, {{0, 0}}}, StorePull{7, 1, {{1, 0}}},
        StorePull{7, 1, {{0, 2}}}, StorePull{7, 1, {}}})
    EXPECT_FALSE(there(0).pull(wrong, soon()).ok());
  StorePlace stranger = there(0).place();
  stranger.token = std::string(32, 'x');
  EXPECT_FALSE(StoreClient(stranger).look(7, soon()).ok());
}

TEST_F(GatherTest, AVersionIsPutOnAnotherHost) {
  const std::vector<uint64_t> large = {3, 500'000};
  const auto part = part_of({counted("v", large, tensor::whole(large))});
  ASSERT_TRUE(there(0).hand_over({.step = 5}, part, soon()).ok());
  const auto version = there(0).fetch(5, soon());
  ASSERT_TRUE(version.ok()) << version.error().message;
  EXPECT_TRUE((*version)->verify().ok());
  EXPECT_EQ((*version)->covered(0).value(), 1'500'000U);
  // What can never fit is refused before it is sent.
  const std::vector<uint64_t> huge = {3'000'000};
  EXPECT_EQ(there(0)
                .hand_over({.step = 6}, part_of({counted("v", huge, tensor::whole(huge))}), soon())
                .code(),
            Code::kOverloaded);
  auto broken = part_of({counted("v", large, tensor::whole(large))});
  broken.manifest.pieces[0].checksum ^= 1;
  EXPECT_FALSE(there(0).hand_over({.step = 6}, broken, soon()).ok());
  EXPECT_EQ(there(0).list(soon())->size(), 1U);
}

}  // namespace
}  // namespace pliant
