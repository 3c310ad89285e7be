#include "pliant/tensor/layout_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "pliant/tensor/presets.h"

namespace pliant::tensor {
namespace {

std::string fault(const std::string& text) {
  const auto document = parse_layout(text);
  return document ? "" : document.error().message;
}

// A document in which one part is replaced.
std::string with(const std::string& key, const std::string& value) {
  nlohmann::ordered_json json = {{"format", "pliant.layout/1"},
                                 {"mesh", {{"axes", {{{"name", "tp"}, {"size", 2}}}}}},
                                 {"rules", {{{"match", "*"}, {"replicated", true}}}}};
  json[key] = nlohmann::ordered_json::parse(value);
  return json.dump();
}

TEST(LayoutJson, EveryPresetSurvivesItsTextForm) {
  for (const char* name : {"gpt-tiny", "llama-tiny", "moe-tiny", "gpt3-175b"}) {
    const Model model = *find_model(name);
    for (const char* sizes :
         {"dp=4,tp=2,pp=2", "dp=2,tp=4,zero=1,interleave=2,pp=2", "dp=2,zero=3"}) {
      const LayoutDocument document{*make_spec(model, *parse_parallelism(sizes), 8),
                                    *make_state(model, DType::kBF16)};
      const std::string text = to_json(document);
      const auto parsed = parse_layout(text);
      ASSERT_TRUE(parsed.ok()) << parsed.error().message;
      EXPECT_EQ(*parsed, document) << name << " " << sizes;
      EXPECT_EQ(to_json(*parsed), text);
    }
  }
}

TEST(LayoutJson, AModelStandsForItsTensorsAndRules) {
  const auto document = parse_layout(
      R"({"format": "pliant.layout/1", "model": "gpt-tiny", "dtype": "f32",
          "parallelism": "tp=2"})");
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_EQ(*document->collection, *make_state(*find_model("gpt-tiny"), DType::kF32));
  EXPECT_NE(fault(R"({"format": "pliant.layout/1", "model": "gpt-5", "parallelism": "tp=2"})")
                .find("model: there is no model 'gpt-5'; there are gpt-tiny"),
            std::string::npos);
  EXPECT_NE(fault(R"({"format": "pliant.layout/1", "model": "gpt-tiny"})").find("'parallelism'"),
            std::string::npos);
  EXPECT_NE(fault(R"({"format": "pliant.layout/1", "model": "gpt-tiny", "parallelism": "xp=2"})")
                .find("parallelism: 'xp=2'"),
            std::string::npos);
  EXPECT_NE(fault(R"({"format": "pliant.layout/1", "model": "gpt-tiny", "parallelism": "tp=2",
                     "rules": []})")
                .find("no field 'rules'"),
            std::string::npos);
}

TEST(LayoutJson, FaultsNameTheFieldAndWhatWasExpected) {
  EXPECT_EQ(fault(with("rules", R"([{"match": "*", "shard": [{"dim": -1, "axes": ["tp"]}]}])")),
            "rules[0].shard[0].dim: expected a whole number from 0 to 7, found -1");
  EXPECT_EQ(fault(with("rules", R"([{"match": "*", "shard": [{"axes": ["tp"]}]}])")),
            "rules[0].shard[0]: the field 'dim' is missing");
  EXPECT_EQ(fault(with("rules", R"([{"match": 3}])")),
            "rules[0].match: expected a text, found number");
  EXPECT_EQ(fault(with("rules", R"([{"match": "*", "shards": []}])")),
            "rules[0]: there is no field 'shards'; there are match, otherwise, shard, stage, "
            "experts, flat, pieces, replicated");
  EXPECT_EQ(fault(with("rules", R"({"match": "*"})")), "rules: expected a list, found object");
  EXPECT_EQ(fault(with("mesh", R"({"axes": [{"name": "tp", "size": 0}]})")),
            "mesh.axes[0].size: expected a whole number from 1 to 65536, found 0");
  EXPECT_EQ(fault(with("mesh", R"({"axes": [{"name": "tp", "size": 2}], "hosts": [0]})")),
            "mesh: the mesh has 2 ranks, but the hosts of 1 are given; give one for each rank");
  EXPECT_EQ(
      fault(with("tensors", R"([{"name": "w", "dtype": "float", "shape": []}])")).substr(0, 50),
      "tensors[0].dtype: unknown element type 'float'; us");
  EXPECT_EQ(
      fault(with("tensors", R"([{"name": "w", "dtype": "f32", "shape": [1.5]}])")),
      "tensors[0].shape[0]: expected a whole number from 0 to 1152921504606846976, found 1.5");
  EXPECT_NE(fault(with("rules", R"([{"match": "*", "stage": "middle"}])"))
                .find("rules[0].stage: expected 'layer', 'first', 'last', 'first_and_last', or"),
            std::string::npos);
  EXPECT_NE(fault(with("rules", R"([{"match": "*", "shard": [{"dim": 0, "axes": ["tp"],
                                    "split": "odd"}]}])"))
                .find("rules[0].shard[0].split: expected 'even', 'ceil', 'balanced', or a list"),
            std::string::npos);
}

TEST(LayoutJson, RefusesWhatIsNoDocument) {
  EXPECT_NE(fault("").find("is no JSON"), std::string::npos);
  EXPECT_NE(fault("{\"format\": ").find("line 1"), std::string::npos);
  EXPECT_NE(fault("[]").find("expected an object"), std::string::npos);
  EXPECT_NE(fault("{}").find("'format' is missing"), std::string::npos);
  EXPECT_NE(fault(R"({"format": "pliant.layout/2"})").find("pliant.layout/1"), std::string::npos);
  EXPECT_NE(fault(R"({"format": "pliant.layout/1", "format": "pliant.layout/1"})")
                .find("'format' is there twice"),
            std::string::npos);
  EXPECT_NE(fault(std::string(100000, '[')), "");
  EXPECT_NE(fault(with("mesh", R"({"axes": [[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]})"))
                .find("too deeply"),
            std::string::npos);
}

// What the documentation shows can be copied.
TEST(LayoutJson, TheExampleOfTheDocumentationIsALayout) {
  std::ifstream file(PLIANT_SOURCE_DIR "/docs/TENSORS.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const size_t begin = page.find("```json\n");
  ASSERT_NE(begin, std::string::npos);
  const size_t end = page.find("```", begin + 8);
  auto document = parse_layout(page.substr(begin + 8, end - begin - 8));
  ASSERT_TRUE(document.ok()) << document.error().message;
  const auto layout =
      Layout::make(std::move(document->spec), std::make_shared<Collection>(*document->collection));
  EXPECT_TRUE(layout.ok()) << layout.error().message;
}

// Every field of the schema, by object.
void add_fields(const nlohmann::json& schema, std::set<std::string>& fields) {
  if (schema.is_object()) {
    if (schema.contains("properties"))
      for (const auto& item : schema["properties"].items()) fields.insert(item.key());
    for (const auto& item : schema.items()) add_fields(item.value(), fields);
  } else if (schema.is_array()) {
    for (const auto& item : schema) add_fields(item, fields);
  }
}

// The schema is for editors and other programs; it must know the fields that the reader knows.
TEST(LayoutJson, TheSchemaHasTheFieldsOfTheReader) {
  std::ifstream file(PLIANT_SOURCE_DIR "/docs/layout.schema.json");
  ASSERT_TRUE(file.good());
  std::set<std::string> fields;
  add_fields(nlohmann::json::parse(file), fields);
  const std::set<std::string> known = {
      "format",      "mesh",    "pipeline", "tensors", "rules",      "model",         "dtype",
      "parallelism", "axes",    "hosts",    "name",    "size",       "axis",          "layers",
      "interleave",  "counts",  "shape",    "match",   "shard",      "otherwise",     "stage",
      "flat",        "experts", "pieces",   "dim",     "split",      "unit",          "blocks",
      "units",       "repeat",  "padded",   "fill",    "count",      "group",         "align",
      "multiple",    "ranks",   "begin",    "end",     "replicated", "ranks_per_host"};
  EXPECT_EQ(fields, known);
}

}  // namespace
}  // namespace pliant::tensor
