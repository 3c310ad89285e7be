#include "cli/plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/completion.h"
#include "cli/plan_report.h"
#include "cli/plan_request.h"

namespace pliant::cli {
namespace {

PlanArguments of_model(const char* model, const char* from, const char* to) {
  PlanArguments arguments;
  arguments.model = model;
  arguments.from = from;
  arguments.to = to;
  return arguments;
}

std::string fault(const PlanArguments& arguments) {
  const auto layouts = load_layouts(arguments);
  if (!layouts) return layouts.error().message;
  const auto options = plan_options(arguments);
  if (!options) return options.error().message;
  const auto plan = tensor::make_plan(layouts->from, layouts->to, *options);
  return plan ? "" : plan.error().message;
}

// A folder of its own, gone at the end.
class PlanFiles : public testing::Test {
 protected:
  PlanFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "plan_test.XXXXXX").string();
    PLIANT_CHECK(mkdtemp(name.data()) != nullptr, "a temporary folder");
    folder_ = name;
  }
  ~PlanFiles() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::string fault_of(const std::string& from, const std::string& to) const {
    PlanArguments arguments;
    arguments.files = {write("a.json", from), write("b.json", to)};
    std::string message = fault(arguments);
    // Without the folder, which is another one each time.
    for (size_t at = 0; (at = message.find(folder_ + "/")) != std::string::npos;)
      message.erase(at, folder_.size() + 1);
    return message;
  }

  std::string folder_;
};

const std::string kSpec = R"({"format": "pliant.layout/1",
  "mesh": {"axes": [{"name": "tp", "size": 2}]},
  "rules": [{"match": "*", "shard": [{"dim": 0, "axes": ["tp"]}]}])";
const std::string kTensors = R"(, "tensors": [{"name": "w", "dtype": "f32", "shape": [4]}]})";

TEST(PlanRequest, ReadsRanksAndMembers) {
  EXPECT_EQ(*parse_ranks("3,8-10"), (std::vector<Rank>{3, 8, 9, 10}));
  EXPECT_EQ(*parse_members("1,-,0"), (std::vector<Rank>{1, tensor::kNewcomer, 0}));
  for (const char* text : {"", "x", "3-", "-3", "5-3", "1,,2", "70000", "1-99999999"})
    EXPECT_FALSE(parse_ranks(text).ok()) << text;
  for (const char* text : {"", "-1", "--", "a"}) EXPECT_FALSE(parse_members(text).ok()) << text;
}

TEST(PlanRequest, RefusesWrongOptions) {
  EXPECT_EQ(fault(of_model("gpt-tiny", "tp=2", "tp=4")), "");
  EXPECT_NE(fault(of_model("gpt-9", "tp=2", "tp=4")).find("--model: there is no model 'gpt-9'"),
            std::string::npos);
  EXPECT_NE(fault(of_model("gpt-tiny", "tp=2", "")).find("--from and --to"), std::string::npos);
  EXPECT_NE(fault(of_model("gpt-tiny", "tp=2", "tp=16"))
                .find("--to: tensor 'decoder.layers.0.self_attention.linear_qkv.weight'"),
            std::string::npos);
  EXPECT_NE(fault(of_model("gpt-tiny", "tp=x", "tp=4")).find("--from: 'tp=x'"), std::string::npos);
  EXPECT_NE(fault({}).find("A.json B.json"), std::string::npos);
  PlanArguments arguments = of_model("gpt-tiny", "tp=2", "tp=4");
  arguments.dtype = "i8";
  EXPECT_NE(fault(arguments).find("--dtype"), std::string::npos);
  arguments = of_model("gpt-tiny", "tp=2", "tp=4");
  arguments.lost = "9";
  EXPECT_NE(fault(arguments).find("no rank 9"), std::string::npos);
  arguments.lost = "";
  arguments.members = "0";
  EXPECT_NE(fault(arguments).find("members"), std::string::npos);
  arguments.remap = true;
  EXPECT_NE(fault(arguments).find("--remap"), std::string::npos);
  arguments = of_model("gpt-tiny", "tp=2", "tp=4");
  arguments.network_gbit = 0;
  EXPECT_NE(fault(arguments).find("--network"), std::string::npos);
  arguments.files = {"a", "b"};
  EXPECT_NE(fault(arguments), "");
}

TEST_F(PlanFiles, OneFileMayLeaveTheTensorsToTheOther) {
  EXPECT_EQ(fault_of(kSpec + kTensors, kSpec + "}"), "");
  EXPECT_EQ(fault_of(kSpec + "}", kSpec + kTensors), "");
  EXPECT_EQ(fault_of(kSpec + "}", kSpec + "}"),
            "neither a.json nor b.json says which tensors there are; give 'tensors' or 'model' in "
            "one of them");
}

TEST_F(PlanFiles, FaultsNameTheFile) {
  EXPECT_NE(fault_of(kSpec + kTensors, "{").find("b.json: the layout is no JSON"),
            std::string::npos);
  EXPECT_NE(fault_of(kSpec + R"(, "tensors": [{"name": "w", "dtype": "f32", "shape": [5]}]})",
                     kSpec + "}")
                .find("a.json: tensor 'w': rules[0].shard[0], dimension 0 of [5]"),
            std::string::npos);
  EXPECT_NE(fault_of(kSpec + kTensors,
                     kSpec + R"(, "tensors": [{"name": "w", "dtype": "f32", "shape": [6]}]})")
                .find("'w' is f32 [4] in the old layout and f32 [6] in the new one"),
            std::string::npos);
  PlanArguments arguments;
  arguments.files = {folder_ + "/nothing", folder_};
  EXPECT_NE(fault(arguments).find("nothing: No such file"), std::string::npos);
  arguments.files = {folder_, folder_};
  EXPECT_NE(fault(arguments).find("is a folder"), std::string::npos);
  arguments.files = {folder_};
  EXPECT_NE(fault(arguments).find("two layouts"), std::string::npos);
}

TEST(PlanReport, NamesTheAxesThatChanged) {
  const auto mesh = [](std::vector<tensor::Axis> axes) {
    return *tensor::Mesh::make(std::move(axes), 0);
  };
  EXPECT_EQ(changed_axes(mesh({{"dp", 2}, {"tp", 4}}), mesh({{"dp", 4}, {"tp", 2}})),
            "dp 2 -> 4, tp 4 -> 2");
  EXPECT_EQ(changed_axes(mesh({{"dp", 2}}), mesh({{"pp", 2}})), "dp 2 -> 1, pp 1 -> 2");
  EXPECT_EQ(changed_axes(mesh({{"dp", 2}}), mesh({{"dp", 2}})), "nothing");
}

TEST(PlanReport, TableAndObjectSayTheSame) {
  PlanArguments arguments = of_model("gpt-tiny", "dp=2,tp=2", "tp=2");
  arguments.slots = 2;
  const auto layouts = load_layouts(arguments);
  ASSERT_TRUE(layouts.ok());
  const auto plan = tensor::make_plan(layouts->from, layouts->to, {.lost = {0, 2}});
  ASSERT_TRUE(plan.ok());
  const PlanCost cost{.plan_ms = 1.5, .memory_bytes = 4096};
  const std::string table = plan_table(arguments, *layouts, *plan, cost);
  EXPECT_NE(table.find("changed  dp 2 -> 1"), std::string::npos) << table;
  EXPECT_NE(table.find("Gone: "), std::string::npos);
  EXPECT_NE(table.find("mlp.linear_fc1.weight [0:64, 0:32]"), std::string::npos) << table;
  const auto json = nlohmann::json::parse(plan_summary_json(*layouts, *plan, cost));
  for (const char* field : {"bytes_total", "bytes_moved", "bytes_lower_bound", "bytes_in_place",
                            "plan_ms", "memory_bytes", "links", "hosts", "gone", "predicted_s"})
    EXPECT_TRUE(json.contains(field)) << field;
  EXPECT_EQ(json["bytes_total"], plan->totals.bytes_total);
  EXPECT_EQ(json["gone"].size(), plan->gone.size());
  EXPECT_EQ(json["plan_ms"], 1.5);
}

TEST(PlanCommand, IsKnownToTheShells) {
  CLI::App app("test", "pliant");
  int exit_code = 0;
  add_plan(app, exit_code);
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    const std::string script = completion_script(app, shell);
    for (const char* word : {"plan", "model", "from", "remap", "lost", "save", "diff"})
      EXPECT_NE(script.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace pliant::cli
