#include "pliant/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

namespace pliant {
namespace {

std::vector<uint64_t> numbers_of(const Permutation& order, uint64_t count) {
  std::vector<uint64_t> numbers;
  for (uint64_t place = 0; place < count; ++place) numbers.push_back(order.at(place));
  return numbers;
}

// Pearson's statistic of counts that should all be equal.
double chi_square(const std::vector<uint64_t>& counts) {
  double total = 0;
  for (const uint64_t count : counts) total += static_cast<double>(count);
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0;
  for (const uint64_t count : counts) {
    const double off = static_cast<double>(count) - expected;
    sum += off * off / expected;
  }
  return sum;
}

// What chance exceeds less than once in a million times with so many degrees of freedom, by the
// approximation of Wilson and Hilferty.
double chance_max(double degrees) {
  const double ninth = 2 / (9 * degrees);
  return degrees * std::pow(1 - ninth + 4.75 * std::sqrt(ninth), 3);
}

TEST(Permutation, HasEveryNumberOnceAndAnInverse) {
  std::vector<uint64_t> sizes = {1000, 1024, 4095, 4096, 4097, 65537};
  for (uint64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    const Permutation order(size, 7, size);
    std::vector<uint64_t> numbers = numbers_of(order, size);
    for (uint64_t place = 0; place < size; ++place)
      ASSERT_EQ(order.at_inverse(numbers[place]), place) << "of " << size;
    std::sort(numbers.begin(), numbers.end());
    for (uint64_t number = 0; number < size; ++number) ASSERT_EQ(numbers[number], number) << size;
  }
}

TEST(Permutation, ReachesTheLargestSizes) {
  std::mt19937_64 prng(1);
  for (const uint64_t size : {Permutation::kSizeMax, Permutation::kSizeMax - 1,
                              Permutation::kSizeMax / 4 + 1, uint64_t{1} << 32}) {
    const Permutation order(size, 3, 4);
    for (int i = 0; i < 1000; ++i) {
      const uint64_t place = i == 0 ? 0 : i == 1 ? size - 1 : prng() % size;
      const uint64_t number = order.at(place);
      ASSERT_LT(number, size);
      ASSERT_EQ(order.at_inverse(number), place) << "of " << size;
    }
  }
}

// The order is part of what running jobs have committed: it must not change.
TEST(Permutation, IsTheSameEverywhere) {
  EXPECT_EQ(numbers_of(Permutation(10, 1, 0), 10),
            (std::vector<uint64_t>{5, 4, 7, 9, 3, 8, 1, 2, 0, 6}));
  EXPECT_EQ(numbers_of(Permutation(1'281'167, 42, 3), 4),
            (std::vector<uint64_t>{103985, 1023571, 576178, 1112950}));
  EXPECT_EQ(numbers_of(Permutation(Permutation::kSizeMax, UINT64_MAX, UINT64_MAX), 3),
            (std::vector<uint64_t>{144157358919102, 188524140014629, 30025051569390}));
}

TEST(Permutation, DiffersBySeedAndEpoch) {
  const auto first = numbers_of(Permutation(1000, 1, 2), 1000);
  EXPECT_EQ(first, numbers_of(Permutation(1000, 1, 2), 1000));
  // Two orders of a thousand share one place on average.
  for (const auto& [seed, epoch] : {std::pair{1, 3}, std::pair{2, 2}, std::pair{2, 1}}) {
    const auto other = numbers_of(
        Permutation(1000, static_cast<uint64_t>(seed), static_cast<uint64_t>(epoch)), 1000);
    int same = 0;
    for (size_t i = 0; i < first.size(); ++i) same += first[i] == other[i] ? 1 : 0;
    EXPECT_LT(same, 10) << seed << " " << epoch;
  }
}

// Over many epochs, every number stands at every place equally often.
TEST(Permutation, PutsEveryNumberEverywhere) {
  constexpr uint64_t kEpochs = 20'000;
  for (const uint64_t size : {2, 3, 4, 5, 7, 10, 16, 17}) {
    std::vector<uint64_t> counts(size * size);
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const Permutation order(size, 11, epoch);
      for (uint64_t place = 0; place < size; ++place) ++counts[place * size + order.at(place)];
    }
    // Rows and columns have fixed sums, which leaves (n - 1)^2 degrees of freedom.
    const auto n = static_cast<double>(size);
    EXPECT_LT(chi_square(counts) * (n - 1) / n, chance_max((n - 1) * (n - 1))) << size;
  }
}

// Over many seeds, no order of a few numbers is preferred.
TEST(Permutation, TakesEveryOrder) {
  for (const uint64_t size : {3, 4, 5, 6}) {
    uint64_t possible = 1;
    for (uint64_t i = 2; i <= size; ++i) possible *= i;
    std::map<std::vector<uint64_t>, uint64_t> orders;
    for (uint64_t seed = 0; seed < 24'000; ++seed)
      ++orders[numbers_of(Permutation(size, seed, 0), size)];
    std::vector<uint64_t> counts;
    for (const auto& [order, count] : orders) counts.push_back(count);
    EXPECT_EQ(counts.size(), possible);
    EXPECT_LT(chi_square(counts), chance_max(static_cast<double>(counts.size() - 1))) << size;
  }
}

// Within one epoch, neither a number nor the step to the next one follows from its place.
TEST(Permutation, MixesALargeDataset) {
  constexpr uint64_t kPlaces = 1 << 18;
  constexpr uint64_t kCells = 64;
  for (const uint64_t size : {uint64_t{1} << 18, uint64_t{1'000'003}, uint64_t{1} << 40}) {
    const Permutation order(size, 5, 1);
    const auto cell = [&](uint64_t number) {
      return static_cast<uint64_t>(static_cast<double>(number) / static_cast<double>(size) *
                                   static_cast<double>(kCells));
    };
    std::vector<uint64_t> by_block(16 * kCells), by_residue(16 * kCells), steps(kCells);
    for (uint64_t place = 0; place < kPlaces; ++place) {
      const uint64_t number = order.at(place);
      ++by_block[place / (kPlaces / 16) * kCells + cell(number)];
      ++by_residue[place % 16 * kCells + number % kCells];
      const uint64_t next = order.at((place + 1) % size);
      ++steps[cell((next + size - number) % size)];
    }
    EXPECT_LT(chi_square(by_block), chance_max(16 * kCells - 1)) << size;
    EXPECT_LT(chi_square(by_residue), chance_max(16 * kCells - 1)) << size;
    EXPECT_LT(chi_square(steps), chance_max(kCells - 1)) << size;
  }
}

TEST(PermutationDeathTest, KnowsItsBounds) {
  EXPECT_DEATH(Permutation(0, 1, 1), "1 to 2\\^48");
  EXPECT_DEATH(Permutation(Permutation::kSizeMax + 1, 1, 1), "1 to 2\\^48");
  EXPECT_DEATH(Permutation(10, 1, 1).at(10), "outside");
  EXPECT_DEATH(Permutation(10, 1, 1).at_inverse(10), "outside");
}

}  // namespace
}  // namespace pliant
