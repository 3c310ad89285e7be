// Every collective x strategy x element type x operator for 1 to 17 ranks, against a reference.
#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

class EveryCollective : public testing::TestWithParam<Rank> {
 protected:
  // Types and operators of one collective, all at once.
  void run_types(TestCluster& cluster, Collective collective, std::span<const DType> dtypes,
                 const std::string& where) {
    const Rank ranks = cluster.size();
    TestBatch batch(cluster, where);
    int index = 0;
    for (const DType dtype : dtypes) {
      for (int op = 0; op < (reduces(collective) ? kOps : 1); ++op) {
        Case call;
        call.collective = collective;
        call.dtype = dtype;
        call.op = static_cast<Op>(op);
        if (reduces(collective) && !is_reducible(call.dtype)) continue;
        call.root = index++ % ranks;
        call.count = 3 + static_cast<size_t>(index % 5);
        if (takes_counts(collective) && index % 2 == 0)
          for (Rank rank = 0; rank < ranks; ++rank)
            call.counts.push_back(static_cast<size_t>((rank * 3 + index) % 4));
        batch.add(call, fmt::format("{} {}", to_string(collective), index));
      }
    }
    batch.finish();
  }

  void run_everything(const std::vector<uint32_t>& hosts, std::span<const std::string> strategies,
                      std::span<const DType> dtypes) {
    TestCluster cluster({.hosts = hosts});
    bool first = true;
    for (const std::string& strategy : strategies) {
      // Chunks so small that even these calls have several.
      cluster.set_plan(plan_of(strategy, 16));
      const std::string where = " by " + strategy;
      for (const Collective collective : kWithBuffers) {
        // Where a strategy makes no difference, two types show that it makes none.
        run_types(cluster, collective,
                  first || !ignores_trees(collective) ? dtypes : dtypes.first(2), where);
        if (HasFatalFailure()) return;
      }
      TestBatch batch(cluster, where);
      batch.add({.collective = Collective::kBarrier}, "barrier");
      batch.finish();
      if (HasFatalFailure()) return;
      first = false;
    }
  }
};

std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int dtype = 0; dtype < kDTypes; ++dtype) all.push_back(static_cast<DType>(dtype));
  return all;
}

TEST_P(EveryCollective, OnHostsOfTwo) {
  const auto hosts = in_pairs(GetParam());
  run_everything(hosts, sampled(strategies_over(hosts)), all_dtypes());
}

// What is left for one host: shared memory, and the strategies whose trees follow the hosts.
TEST_P(EveryCollective, OnOneHost) {
  const std::string strategies[] = {"direct", "hierarchical:ring", "multi_star", "tree",
                                    "binary_tree_star"};
  run_everything(one_host(GetParam()), strategies, all_dtypes());
}

TEST_P(EveryCollective, OnScatteredHosts) {
  const auto hosts = scattered(GetParam());
  const DType dtypes[] = {DType::kBF16, DType::kI16, DType::kBool, DType::kF64};
  run_everything(hosts, sampled(strategies_over(hosts)), dtypes);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryCollective, testing::ValuesIn(ranks_up_to_17()));

// ---- Half-precision -----------------------------------------------------------------------------

// Rounded at every step, 256 + 1 is 256 again in bf16 (and 2048 + 1 is 2048 in f16): the ones would
// all be lost.
TEST(HalfPrecision, IsRoundedOnceAtTheEnd) {
  constexpr Rank kRanks = 17;
  for (const auto& hosts : {one_host(kRanks), in_pairs(kRanks), scattered(kRanks)}) {
    TestCluster cluster({.hosts = hosts});
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      cluster.set_plan(plan_of(strategy, 16));
      for (const Collective collective : kReductions) {
        for (const DType dtype : {DType::kBF16, DType::kF16}) {
          const Case call{.collective = collective, .dtype = dtype, .count = 9, .root = 3};
          std::vector<Data> inputs(kRanks);
          for (Rank rank = 0; rank < kRanks; ++rank)
            for (size_t i = 0; i < extent(call, rank, kRanks).input; ++i) {
              // The large one is elsewhere in every element: first, last and in between.
              const bool large = i % kRanks == static_cast<size_t>(rank);
              append_value(inputs[static_cast<size_t>(rank)], dtype,
                           !large                  ? 1
                           : dtype == DType::kBF16 ? 256
                                                   : 2048);
            }
          TestCall one(cluster, call, "halves");
          one.set_inputs(inputs);
          one.begin();
          cluster.run_until([&] { return one.done(); });
          one.judge(" by " + strategy);
          Data sum;
          append_value(sum, dtype, dtype == DType::kBF16 ? 272 : 2064);
          ASSERT_EQ(slice(one.output(3), 0, 1, 2), sum) << one.describe() << " by " << strategy;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pliant
