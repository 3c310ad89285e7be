#include "pliant/policy/make_policy.h"

#include <gtest/gtest.h>

#include "pliant/policy/test_signals.h"

namespace pliant {
namespace {

std::string error_of(std::string_view text) {
  const auto made = make_policy(text);
  return made ? "" : made.error().message;
}

TEST(MakePolicy, EveryNameAloneOrWithOptionsMakesOne) {
  for (const std::string text :
       {"size_schedule:2@0,4@100", "best_size", "best_size:min=1,max=8,price=0.1,horizon=60",
        "best_size:revocations=2.5,repair=30", "add_while_faster:alpha=0.33,max=4",
        "batch_by_noise:min=32,max=1024,rule=linear",
        "synchronisation_by_size:synchronous=4,model_averaging=16,congestion=0.5",
        "synchronisation_by_size:change_step=1000,before=pair_averaging,after=synchronous",
        "topology_by_interference:fallback=hierarchical:star@1|auto,threshold=0.7", "best_size:"}) {
    const auto made = make_policy(text);
    ASSERT_TRUE(made.ok()) << text << ": " << made.error().message;
    EXPECT_EQ((*made)->name(), text.substr(0, text.find(':')));
    EXPECT_FALSE((*made)->state().empty());
  }
}

TEST(MakePolicy, OptionsReachThePolicy) {
  auto schedule = make_policy("size_schedule:3@0");
  EXPECT_EQ((*schedule)->before_train(step_signals(0, 1)).members, 3);
  auto ways = make_policy("synchronisation_by_size:change_step=10,before=pair_averaging");
  EXPECT_EQ((*ways)->before_train(step_signals(0, 1)).synchronisation,
            Synchronisation::kPairAveraging);
  auto alone = make_policy("synchronisation_by_size:synchronous=0,model_averaging=1");
  EXPECT_EQ((*alone)->before_train(step_signals(0, 1)).synchronisation,
            Synchronisation::kModelAveraging);
}

TEST(MakePolicy, ErrorsSayWhatIsWrongAndWhatThereIs) {
  EXPECT_EQ(error_of("biggest"),
            "there is no policy 'biggest'; there are size_schedule, best_size, add_while_faster, "
            "batch_by_noise, synchronisation_by_size, topology_by_interference");
  EXPECT_EQ(error_of("add_while_faster:beta=1"),
            "'beta=1' is no option of add_while_faster; write OPTION=VALUE with one of max, alpha, "
            "window");
  EXPECT_EQ(error_of("best_size:max=0"),
            "best_size: max=0: it must be a whole number from 1 to 1048576");
  EXPECT_EQ(error_of("best_size:max=eight"),
            "best_size: max=eight: it must be a whole number from 1 to 1048576");
  EXPECT_EQ(error_of("best_size:price=nan"),
            "best_size: price=nan: it must be a number from 0 to 1000000");
  EXPECT_EQ(error_of("best_size:max=4,max=5"), "best_size: max is given twice");
  EXPECT_EQ(error_of("best_size:min=9,max=8"), "best_size: min=9 is more than max=8");
  EXPECT_EQ(error_of("batch_by_noise:rule=cubic"),
            "batch_by_noise: rule=cubic: it must be one of none, linear, sqrt");
  EXPECT_EQ(error_of("size_schedule:four"),
            "size_schedule: 'four' is no size and step; write SIZE@STEP,... as in 2@0,4@100");
  EXPECT_NE(error_of("size_schedule"), "");
  EXPECT_NE(error_of("size_schedule:4000000000@0"), "");
  EXPECT_NE(error_of("topology_by_interference:fallback=|ring"), "");
  EXPECT_NE(error_of("topology_by_interference:window=17"), "");
  EXPECT_NE(error_of(""), "");
}

TEST(MakePolicy, TheDescriptionHasEveryPolicyAndItsDefaults) {
  const std::string text = describe_policies();
  for (const char* part :
       {"size_schedule: ", "best_size: ", "add_while_faster: ", "batch_by_noise: ",
        "synchronisation_by_size: ", "topology_by_interference: ", "    price=0 ",
        "    alpha=0.33 ", "    fallback=auto ", "    rule=sqrt ", "    before=model_averaging "})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace
}  // namespace pliant
