#include "pliant/tensor/pattern.h"

#include <gtest/gtest.h>

namespace pliant::tensor {
namespace {

std::optional<NameNumbers> match(std::string_view pattern, std::string_view name) {
  return Pattern::parse(pattern)->match(name);
}

TEST(Pattern, TextMatchesItself) {
  EXPECT_TRUE(match("a.b", "a.b"));
  EXPECT_FALSE(match("a.b", "a.bc"));
  EXPECT_FALSE(match("a.b", "a."));
  EXPECT_FALSE(match("a.b", "axb"));
}

TEST(Pattern, StarsMatchAnything) {
  EXPECT_TRUE(match("*", ""));
  EXPECT_TRUE(match("*.bias", "layers.3.bias"));
  EXPECT_FALSE(match("*.bias", "layers.3.biased"));
  EXPECT_TRUE(match("a*b*c", "a.b.b.c"));
  EXPECT_TRUE(match("*aab", "aaaab"));
  EXPECT_FALSE(match("a*b*c", "a.c.b"));
  EXPECT_TRUE(match("a**", "a"));
}

TEST(Pattern, NumbersAreTakenWhole) {
  EXPECT_EQ(match("layers.{layer}.w", "layers.12.w")->layer, 12u);
  EXPECT_FALSE(match("layers.{layer}.w", "layers.x.w"));
  EXPECT_FALSE(match("layers.{layer}.w", "layers..w"));
  EXPECT_FALSE(match("layers.{layer}1", "layers.21"));
  EXPECT_EQ(match("*{layer}.w", "h12.w")->layer, 12u);
  EXPECT_EQ(match("*.{layer}.*", "a.b.7.c")->layer, 7u);
  const auto both = match("{layer}.experts.{expert}.*", "3.experts.60.down");
  ASSERT_TRUE(both);
  EXPECT_EQ(both->layer, 3u);
  EXPECT_EQ(both->expert, 60u);
  EXPECT_FALSE(match("{layer}", "12345678901234567890"));
}

// A long name against many stars takes no long time.
TEST(Pattern, ManyStarsAreQuick) {
  std::string stars;
  for (int i = 0; i < 200; ++i) stars += "*a";
  EXPECT_FALSE(match(stars + "b", std::string(500, 'a')));
}

TEST(Pattern, RefusesWhatStandsForNothing) {
  for (const char* text : {"", "{layers}", "a{", "{layer}.{layer}", "{}"}) {
    const auto pattern = Pattern::parse(text);
    EXPECT_FALSE(pattern.ok()) << text;
  }
  EXPECT_NE(Pattern::parse("a.{lyer}").error().message.find("{lyer}"), std::string::npos);
  EXPECT_FALSE(Pattern::parse(std::string(600, 'a')).ok());
}

TEST(Pattern, SelectsTensors) {
  const auto collection = Collection::make(
      {{"a.w", DType::kF32, {}}, {"a.b", DType::kF32, {}}, {"c.w", DType::kF32, {}}});
  using Numbers = std::vector<size_t>;
  const auto chosen = [&](const std::vector<std::string>& patterns) {
    return select(*collection, patterns);
  };
  EXPECT_EQ(*chosen({}), (Numbers{0, 1, 2}));
  EXPECT_EQ(*chosen({"a.*"}), (Numbers{0, 1}));
  EXPECT_EQ(*chosen({"c.w", "*.w"}), (Numbers{0, 2}));
  EXPECT_EQ(chosen({"a.*", "x"}).error().message, "no tensor matches 'x'");
  EXPECT_FALSE(chosen({"{nothing}"}).ok());
}

}  // namespace
}  // namespace pliant::tensor
