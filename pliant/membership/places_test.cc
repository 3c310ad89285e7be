#include "pliant/membership/places.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

using namespace std::chrono_literals;

class PlacesTest : public ::testing::Test {
 protected:
  PlacesTest() {
    places_.open(0);
    places_.open(1);
  }
  Instant now_{1h};
  Places places_{PlacesOptions{}, {{"a", 2}, {"b", 1}}};
};

TEST_F(PlacesTest, SlotsAreTakenInOrderAndOnce) {
  EXPECT_EQ(places_.take(now_), (PeerId{0, 0, 1}));
  EXPECT_EQ(places_.take(now_), (PeerId{0, 1, 1}));
  EXPECT_EQ(places_.take(now_), (PeerId{1, 0, 1}));
  EXPECT_EQ(places_.take(now_), std::nullopt);
  EXPECT_FALSE(places_.hopeful());
  places_.release({0, 1, 1});
  EXPECT_TRUE(places_.hopeful());
  EXPECT_EQ(places_.take(now_), (PeerId{0, 1, 2}));
  places_.release({0, 1, 1});  // long gone: frees nobody else's place
  EXPECT_TRUE(places_.occupied({0, 1, 2}));
}

TEST_F(PlacesTest, FailedSlotRestsAndComesLast) {
  const PeerId first = *places_.take(now_);
  places_.release(first);
  EXPECT_EQ(places_.fail(first, now_, false), 500ms);
  EXPECT_EQ(places_.next_due(now_), now_ + 500ms);
  now_ += 500ms;
  EXPECT_EQ(places_.take(now_), (PeerId{0, 1, 1}));
  EXPECT_EQ(places_.take(now_), (PeerId{1, 0, 1}));
  EXPECT_EQ(places_.take(now_), (PeerId{0, 0, 2}));
  places_.release({0, 0, 2});
  EXPECT_EQ(places_.fail({0, 0, 2}, now_, false), 1s);
  EXPECT_EQ(places_.fail({0, 0, 2}, now_, true), 500ms);
}

TEST_F(PlacesTest, WorkersThatWereLostWithTheirHostDoNotSpeakAgainstIt) {
  places_.close(0);
  for (int i = 0; i < 4; ++i) {
    places_.fail({0, 0, 0}, now_, true);
    EXPECT_EQ(places_.set_aside(0, now_), std::nullopt);
  }
  places_.open(0);
  places_.fail({0, 0, 0}, now_, true);
  EXPECT_EQ(places_.set_aside(0, now_), std::nullopt);
}

TEST_F(PlacesTest, HostIsSetAsideForLongerEachTimeAndTrustedAgain) {
  const auto fail_thrice = [&] {
    for (int i = 0; i < 2; ++i) {
      places_.fail({0, 0, 0}, now_, false);
      EXPECT_EQ(places_.set_aside(0, now_), std::nullopt);
    }
    places_.fail({0, 0, 0}, now_, false);
    return places_.set_aside(0, now_);
  };
  EXPECT_EQ(fail_thrice(), Duration(60s));
  EXPECT_EQ(places_.take(now_), (PeerId{1, 0, 1}));
  places_.release({1, 0, 1});
  now_ += 60s;
  EXPECT_EQ(fail_thrice(), Duration(120s));
  now_ += 120s;
  for (const Duration expected : {Duration(240s), Duration(480s), Duration(600s), Duration(600s)}) {
    EXPECT_EQ(fail_thrice(), expected);
    now_ += expected;
  }
  now_ += 1h;
  EXPECT_EQ(fail_thrice(), Duration(60s));
}

TEST_F(PlacesTest, FailuresFarApartAreForgiven) {
  for (int i = 0; i < 10; ++i) {
    places_.fail({0, 0, 0}, now_, false);
    EXPECT_EQ(places_.set_aside(0, now_), std::nullopt);
    now_ += 31s;
  }
}

TEST_F(PlacesTest, LastUsableHostIsNotSetAside) {
  places_.drain(1);
  EXPECT_EQ(places_.slot_count(), 2u);
  for (int i = 0; i < 3; ++i) places_.fail({0, 0, 0}, now_, false);
  EXPECT_EQ(places_.set_aside(0, now_), Duration(0));
  now_ += 30s;
  EXPECT_TRUE(places_.take(now_).has_value());
}

TEST_F(PlacesTest, GoneHostHasNoPlaces) {
  places_.take(now_);
  places_.close(0);
  EXPECT_EQ(places_.slot_count(), 1u);
  EXPECT_EQ(places_.take(now_), (PeerId{1, 0, 1}));
}

}  // namespace
}  // namespace pliant
