#include "pliant/data/sampler_options.h"

#include <gtest/gtest.h>

#include "pliant/data/permutation.h"
#include "pliant/data/sampler.h"

namespace pliant {
namespace {

const SamplerOptions kPlain{.samples = 100, .global_batch = 8, .seed = 3, .epochs = 2};

TEST(SamplerOptions, HaveOneKindOfBatch) {
  EXPECT_TRUE(check(kPlain).ok());
  EXPECT_TRUE(check({.samples = 100, .batch_per_member = 8}).ok());
  EXPECT_FALSE(check({.samples = 100}).ok());
  const Status both = check({.samples = 100, .global_batch = 8, .batch_per_member = 4});
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.error().message.find("not both"), std::string::npos);
}

TEST(SamplerOptions, KnowTheBatchOfAnyNumberOfMembers) {
  EXPECT_EQ(kPlain.batch_of(1), 8u);
  EXPECT_EQ(kPlain.batch_of(5), 8u);
  const SamplerOptions scaled{.samples = 100, .batch_per_member = 8};
  EXPECT_EQ(scaled.batch_of(1), 8u);
  EXPECT_EQ(scaled.batch_of(5), 40u);
  const SamplerOptions large{.samples = Permutation::kSizeMax, .batch_per_member = UINT64_MAX};
  EXPECT_EQ(large.batch_of(1000), 1000 * Permutation::kSizeMax) << "and no overflow";
}

TEST(SamplerOptions, DifferencesAreNamed) {
  const auto named = [](auto change) {
    SamplerOptions mine = kPlain;
    change(mine);
    return difference(mine, kPlain);
  };
  EXPECT_EQ(named([](auto&) {}), "");
  EXPECT_EQ(named([](auto& mine) { mine.global_batch = 64; }), "");
  EXPECT_EQ(named([](auto& mine) { mine.samples = 99; }),
            "its dataset has 99 samples, the others' 100");
  EXPECT_EQ(named([](auto& mine) { mine.seed = 4; }), "its sampler has seed 4, the others' 3");
  EXPECT_EQ(named([](auto& mine) { mine.epochs = 0; }),
            "it would go on for ever, the others end after 2 epochs");
  EXPECT_EQ(named([](auto& mine) { mine.shuffle = false; }),
            "the others shuffle their samples, it does not");
  EXPECT_EQ(named([](auto& mine) { mine.constant_batch = true; }),
            "it keeps the global batch constant, the others do not");
  EXPECT_EQ(named([](auto& mine) {
              mine.global_batch = 0;
              mine.batch_per_member = 8;
            }),
            "it has a batch per member, the others a global batch");
}

TEST(SamplerOptions, ComeBackAsTheyWere) {
  for (const SamplerOptions& options :
       {kPlain, SamplerOptions{.samples = 7, .batch_per_member = 2, .epochs = 0, .shuffle = false},
        SamplerOptions{.samples = 7, .global_batch = 2, .constant_batch = true}}) {
    auto bytes = encode(options);
    const auto decoded = decode_sampler_options(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, options);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(decode_sampler_options(Bytes(bytes).first(size)).ok()) << size;
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_sampler_options(bytes).ok());
  }
  auto other = encode(kPlain);
  other[0] = std::byte{9};
  EXPECT_FALSE(decode_sampler_options(other).ok());
  EXPECT_FALSE(decode_sampler_options(encode(SamplerOptions{.samples = 7})).ok()) << "no batch";
}

TEST(Batch, PerMemberIsTheSameForEach) {
  auto sampler = Sampler::make({.samples = 100, .batch_per_member = 6});
  ASSERT_TRUE(sampler.ok());
  for (const int members : {1, 3, 7}) {
    const Draw draw = sampler->draw(members);
    for (const auto& ranges : draw.members) EXPECT_EQ(size_of(ranges), 6u) << members;
  }
  EXPECT_EQ(sampler->draw(20).samples(), 100u) << "no more than the epoch has";
}

TEST(Batch, IsSetBetweenDraws) {
  auto sampler = Sampler::make(kPlain);
  ASSERT_TRUE(sampler.ok());
  const bool both[] = {true, true};
  sampler->commit(sampler->draw(2), both);
  EXPECT_TRUE(sampler->set_global_batch(20).ok());
  EXPECT_EQ(sampler->draw(2), (Draw{.epoch = 0, .members = {{{8, 18}}, {{18, 28}}}}));
  EXPECT_FALSE(sampler->set_global_batch(0).ok());
  EXPECT_EQ(sampler->options().global_batch, 20u) << "what is refused changes nothing";
  auto scaled = Sampler::make({.samples = 100, .batch_per_member = 6});
  const Status refused = scaled->set_global_batch(20);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("a batch per member (6)"), std::string::npos);
}

}  // namespace
}  // namespace pliant
