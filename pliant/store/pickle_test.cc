#include "pliant/store/pickle.h"

#include <gtest/gtest.h>

#include "pliant/store/test_torch.h"

namespace pliant::store {
namespace {

using namespace std::string_literals;

std::string json_of(const std::string& pickle) {
  const auto decoded = Pickle::decode(bytes_of(pickle));
  if (!decoded.ok()) return decoded.error().message;
  PickleWalk walk(10000);
  return to_json(decoded->root(), walk);
}

TEST(Pickle, ReadsScalars) {
  EXPECT_EQ(json_of("\x80\x02N."s), "null");
  EXPECT_EQ(json_of("\x80\x02\x88."s), "true");
  EXPECT_EQ(json_of("I01\n."s), "true");
  EXPECT_EQ(json_of("I-7\n."s), "-7");
  EXPECT_EQ(json_of("L123L\n."s), "123");
  EXPECT_EQ(json_of("K\xff."s), "255");
  EXPECT_EQ(json_of("M\x00\x01."s), "256");
  EXPECT_EQ(json_of("J\xff\xff\xff\xff."s), "-1");
  EXPECT_EQ(json_of("\x8a\x00."s), "0");
  EXPECT_EQ(json_of("\x8a\x01\xff."s), "-1");
  EXPECT_EQ(json_of("\x8a\x05\x00\x00\x00\x00\x01."s), "4294967296");
  EXPECT_EQ(json_of("\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\x01."s), "\"0x010000000000000001\"");
  EXPECT_EQ(json_of("G\x3f\xf8\x00\x00\x00\x00\x00\x00."s), "1.5");
  EXPECT_EQ(json_of("G\x7f\xf0\x00\x00\x00\x00\x00\x00."s), "\"inf\"");
  EXPECT_EQ(json_of("F2.5\n."s), "2.5");
  EXPECT_EQ(json_of("\x8c\x02hi."s), "\"hi\"");
  EXPECT_EQ(json_of("U\x02hi."s), "\"hi\"");
  EXPECT_EQ(json_of("C\x03"
                    "abc."s),
            "\"<3 bytes>\"");
}

TEST(Pickle, ReadsContainers) {
  using namespace pickled;
  EXPECT_EQ(json_of(whole(list({number(1), text("a"), numbers({2, 3})}))), R"([1,"a",[2,3]])");
  EXPECT_EQ(json_of(whole(dict({{"k", number(1)}, {"l", ")"}}))), R"({"k":1,"l":[]})");
  EXPECT_EQ(json_of("\x80\x04\x8f(K\x01K\x02\x90."s), "[1,2]");
  EXPECT_EQ(json_of("\x80\x02K\x01K\x02\x86."s), "[1,2]");
  EXPECT_EQ(json_of("(K\x01K\x02l."s), "[1,2]");
  EXPECT_EQ(json_of("(U\x01kK\x02"
                    "d."s),
            R"({"k":2})");
  EXPECT_EQ(json_of("\x80\x02]K\x05"
                    "a."s),
            "[5]");
}

TEST(Pickle, TextNeedNotBeUtf8) {
  EXPECT_EQ(json_of("\x80\x02U\x01\xfe."s), "\"\xef\xbf\xbd\"");
  // As part of a key, too.
  EXPECT_NE(json_of("\x80\x02}(U\x01\xfe\x85K\x01u."s).find(":1}"), std::string::npos);
}

TEST(Pickle, RemembersValues) {
  EXPECT_EQ(json_of("\x80\x04\x8c\x01x\x94h\x00\x86."s), R"(["x","x"])");
  EXPECT_EQ(json_of("\x80\x02X\x01\x00\x00\x00xq\x07h\x07\x86."s), R"(["x","x"])");
  const std::string far =
      "\x80\x02Nr\xff\xff\xff\xff"
      "0j\xff\xff\xff\xff."s;
  EXPECT_EQ(json_of(far), "null");
  EXPECT_NE(json_of("h\x05."s).find("remembered as 5"), std::string::npos);
}

TEST(Pickle, WhatItWouldExecuteIsAValue) {
  // The classic: os.system("...") at load.
  const std::string evil =
      pickled::whole(pickled::call(pickled::global("os", "system"), {pickled::text("echo no")}));
  const auto decoded = Pickle::decode(bytes_of(evil));
  ASSERT_TRUE(decoded.ok());
  const PickleValue root = decoded->root();
  EXPECT_TRUE(root.is(PickleKind::kObject));
  EXPECT_EQ(root.global_name(), "os.system");
  EXPECT_TRUE(root.callable().is_global("os", "system"));
  EXPECT_EQ(root.arguments().item(0).string(), "echo no");
  EXPECT_EQ(json_of(evil), R"({"object":"os.system","arguments":["echo no"]})");
}

TEST(Pickle, ObjectsHaveStatesItemsAndEntries) {
  using namespace pickled;
  const std::string pickle = whole(object("m", "C", {{"x", number(4)}}));
  const auto decoded = Pickle::decode(bytes_of(pickle));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(decoded->root().attribute("x").integer(), 4);
  EXPECT_TRUE(decoded->root().attribute("y").is_none());
  const std::string ordered =
      whole(call(global("collections", "OrderedDict"), {}) + "(" + text("a") + number(1) + "u");
  const auto mapping = Pickle::decode(bytes_of(ordered));
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->root().entries(), 1U);
  EXPECT_EQ(mapping->root().find("a").integer(), 1);
  const std::string slots =
      whole(global("m", "C") + ")\x81" + tuple({"N", dict({{"s", "K\x03"}})}) + "b");
  const auto slotted = Pickle::decode(bytes_of(slots));
  ASSERT_TRUE(slotted.ok());
  EXPECT_EQ(slotted->root().attribute("s").integer(), 3);
}

TEST(Pickle, MayContainItself) {
  const std::string self =
      "\x80\x02]q\x00h\x00"
      "a."s;
  const auto decoded = Pickle::decode(bytes_of(self));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->root().item(0).id(), decoded->root().id());
  PickleWalk walk(1000);
  EXPECT_NE(to_json(decoded->root(), walk).find("..."), std::string::npos);
}

TEST(Pickle, AWalkOverSharedValuesHasABound) {
  // Each tuple has the one before it twice: 2^60 leaves in 200 bytes.
  std::string laughs = "\x80\x04K\x01";
  for (int i = 0; i < 60; ++i) laughs += "2\x86";
  laughs += ".";
  const auto decoded = Pickle::decode(bytes_of(laughs));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  PickleWalk walk(5000);
  EXPECT_LT(to_json(decoded->root(), walk).size(), 100'000U);
}

TEST(Pickle, KeysOfKeysDoNotGrow) {
  // Each dict has the tuple of the one before it as its key.
  std::string nested = "\x80\x02U\x01\"";
  for (int i = 0; i < 40; ++i)
    nested +=
        "q\x01"
        "0}h\x01K\x01s\x85";
  EXPECT_LT(json_of(nested + ".").size(), 10'000U);
}

TEST(Pickle, RefusesWhatIsWrong) {
  for (const std::string& bad : {""s,
                                 "N"s,
                                 "."s,
                                 "NN."s,
                                 "(."s,
                                 "(N."s,
                                 "a."s,
                                 "u."s,
                                 "}(Nu."s,
                                 "Na."s,
                                 "NNb."s,
                                 "R."s,
                                 "\x80\x06N."s,
                                 "\x82\x01."s,
                                 "\x97."s,
                                 "\xff."s,
                                 "X\xff\xff\xff\xff"
                                 "a."s,
                                 "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                                 "a."s,
                                 "\x8b\xff\xff\xff\x7f."s,
                                 "cos\nsystem"s,
                                 "K\x01K\x02\x93."s,
                                 "I99999999999999999999\n."s,
                                 "Ix\n."s,
                                 "1."s,
                                 "t."s,
                                 "q\x01."s}) {
    const auto decoded = Pickle::decode(bytes_of(bad));
    ASSERT_FALSE(decoded.ok()) << testing::PrintToString(bad);
    EXPECT_NE(decoded.error().message.find("offset"), std::string::npos);
  }
}

TEST(Pickle, KeepsItsLimits) {
  const std::string deep = "\x80\x02" + std::string(50, '(') + "N" + std::string(50, 't') + ".";
  EXPECT_TRUE(Pickle::decode(bytes_of(deep)).ok());
  EXPECT_FALSE(Pickle::decode(bytes_of(deep), {.depth_max = 49}).ok());
  const std::string many = "\x80\x02(" + std::string(1000, ']') + "t.";
  EXPECT_TRUE(Pickle::decode(bytes_of(many)).ok());
  EXPECT_FALSE(Pickle::decode(bytes_of(many), {.values_max = 500}).ok());
  EXPECT_FALSE(Pickle::decode(bytes_of(many), {.size_bytes_max = 500}).ok());
}

}  // namespace
}  // namespace pliant::store
