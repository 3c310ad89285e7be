#include "pliant/store/reshard_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "pliant/base/text.h"
#include "pliant/store/checkpoint_writer.h"
#include "pliant/store/reshard.h"
#include "pliant/store/reshard_journal.h"
#include "pliant/store/safetensors_folder.h"
#include "pliant/store/test_folder.h"
#include "pliant/store/test_source.h"
#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/test_layouts.h"

namespace pliant::store {
namespace {

using tensor::Collection;
using tensor::Layout;
using tensor::layout_of;
using tensor::sharded;
using tensor::Tensors;
using Contents = std::map<std::string, std::vector<std::byte>>;

Contents contents_of(const std::string& path) {
  Contents all;
  const auto checkpoint = Checkpoint::open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  if (!checkpoint.ok()) return all;
  for (size_t i = 0; i < (*checkpoint)->tensors().size(); ++i) {
    const TensorInfo& info = (*checkpoint)->tensors()[i];
    all[info.name + " " + to_string(info)] = *(*checkpoint)->read_whole(i);
  }
  return all;
}

std::string write_source(const TestFolder& folder, const Tensors& tensors) {
  WriteSource source = source_of(tensors);
  source.values = {{"lr", "0.5"}};
  const auto done = write_checkpoint(source, folder / "source.safetensors", {});
  EXPECT_TRUE(done.ok()) << done.error().message;
  return folder / "source.safetensors";
}

Result<ReshardReport> run(const std::string& from, const Layout& layout, const std::string& to,
                          ReshardOptions options = {}) {
  auto source = Checkpoint::open(from);
  if (!source.ok()) return source.error();
  return reshard(**source, layout, to, options);
}

// From one file to a layout, to another, and there it is as it was; each verified on the way.
void expect_same_through(const Layout& first, const Layout& second) {
  const TestFolder folder;
  const std::string source = write_source(folder, first.collection().tensors());
  const ReshardOptions options{.memory_bytes = ReshardOptions::kMemoryBytesMin,
                               .verify = ReshardOptions::Verify::kYes};
  const auto one = run(source, first, folder / "first", options);
  ASSERT_TRUE(one.ok()) << one.error().message;
  const auto two = run(folder / "first", second, folder / "second", options);
  ASSERT_TRUE(two.ok()) << two.error().message;
  const Contents before = contents_of(source);
  EXPECT_EQ(contents_of(folder / "first"), before);
  EXPECT_EQ(contents_of(folder / "second"), before);
  EXPECT_EQ(folder.names().size(), 3U);
}

const Tensors kTensors = {{"a", DType::kF32, {12, 6}},
                          {"b", DType::kBF16, {8, 3}},
                          {"c", DType::kF32, {4}},
                          {"d", DType::kU8, {20, 2}}};

TEST(ReshardRun, WritesWhatTheReportSays) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("dp=2,tp=4", sharded(0), kTensors);
  uint64_t last = 0;
  const auto done =
      run(source, layout, folder / "out/", {.written = [&](uint64_t bytes, uint64_t total) {
            EXPECT_GE(bytes, last);
            EXPECT_EQ(total, 392U);
            last = bytes;
          }});
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(last, 392U);
  EXPECT_EQ(done->tensors, 4U);
  EXPECT_EQ(done->files, 4U);
  EXPECT_EQ(done->bytes, 392U);
  EXPECT_EQ(done->bytes_moved, 392U);
  EXPECT_EQ(folder.names().size(), 2U);
  const auto written = Checkpoint::open(folder / "out");
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_EQ((*written)->format(), CheckpointFormat::kDcpSafetensors);
  std::map<std::string, std::string> values;
  for (const StoredValue& value : (*written)->values()) values[value.name] = value.json;
  EXPECT_EQ(values["lr"], "0.5");
  const auto document = tensor::parse_layout(folder.get("out/layout.json"));
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_EQ(document->spec, layout.spec());
  EXPECT_EQ(*document->collection, layout.collection());
}

// Runs it in a process of its own, which ends at once when a callback says so: nothing is cleaned
// up, as if it had been killed.
void run_and_crash(const std::string& from, const Layout& layout, const std::string& to,
                   const ReshardOptions& options) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)run(from, layout, to, options);
    _exit(1);  // it was not stopped
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ReshardRun, ContinuesAfterAnInterruption) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("tp=4", sharded(0), kTensors);
  int pieces = 0;
  run_and_crash(source, layout, folder / "out", {.written = [&](uint64_t, uint64_t) {
                  if (++pieces > 9) _exit(0);  // in the third file: each has four tensors
                }});
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  ASSERT_TRUE(std::filesystem::exists(folder / "out.partial"));
  const auto other = run(source, layout_of("tp=2", sharded(0), kTensors), folder / "out");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("to another layout"), std::string::npos);
  EXPECT_NE(other.error().message.find("--restart"), std::string::npos);
  const auto done = run(source, layout, folder / "out", {.verify = ReshardOptions::Verify::kYes});
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(done->files_kept, 2U);
  EXPECT_EQ(done->bytes_moved, 392U / 2);
  EXPECT_EQ(contents_of(folder / "out"), contents_of(source));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.partial"));
  // Four ranks, the layout and the values; nothing of what was unfinished, and no journal.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "out"), {}), 6);
}

// A folder as an interrupted run leaves it: all files are complete, and it has no name yet. Returns
// the first of them.
std::string interrupted(const TestFolder& folder, const std::string& source, const Layout& layout) {
  run_and_crash(
      source, layout, folder / "out",
      {.verify = ReshardOptions::Verify::kYes, .compared = [](uint64_t, uint64_t) { _exit(0); }});
  const auto files = plan_rank_files(layout, ReshardOptions{}.shard_bytes_max);
  return folder / "out.partial/" + files->front().name;
}

TEST(ReshardRun, FilesThatWereChangedSinceAreWrittenAgain) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("tp=4", sharded(0), kTensors);
  const std::string file = interrupted(folder, source, layout);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end)
      << 'x';
  const auto done = run(source, layout, folder / "out");
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(done->files_kept, 3U);
  ASSERT_EQ(done->warnings.size(), 1U);
  EXPECT_NE(done->warnings[0].find(file), std::string::npos);
  EXPECT_EQ(contents_of(folder / "out"), contents_of(source));
}

TEST(ReshardRun, AChangedSourceIsNoticed) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("tp=4", sharded(0), kTensors);
  interrupted(folder, source, layout);
  std::filesystem::last_write_time(
      source, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const auto refused = run(source, layout, folder / "out");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("before it was changed"), std::string::npos);
  const auto anew =
      run(source, layout, folder / "out", {.unfinished = ReshardOptions::Unfinished::kRestart});
  ASSERT_TRUE(anew.ok()) << anew.error().message;
  EXPECT_EQ(anew->files_kept, 0U);
}

TEST(ReshardRun, TwoAtOnceAreRefused) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("tp=4", sharded(0), kTensors);
  interrupted(folder, source, layout);
  const auto busy = ReshardJournal::open(folder / "out.partial/" + std::string(kJournalName));
  ASSERT_TRUE(busy.ok());
  for (const auto unfinished :
       {ReshardOptions::Unfinished::kContinue, ReshardOptions::Unfinished::kRestart}) {
    const auto refused = run(source, layout, folder / "out", {.unfinished = unfinished});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("another reshard"), std::string::npos);
  }
  EXPECT_FALSE((*busy)->text().empty());
}

TEST(ReshardRun, BadDestinationsAreRefusedAndNothingIsLeft) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("tp=4", sharded(0), kTensors);
  folder.put("there/x", "mine");
  folder.put("file", "mine");
  folder.put("foreign.partial/x", "mine");
  const auto message = [&](const std::string& to, ReshardOptions options = {}) {
    const auto done = run(source, layout, folder / to, options);
    return done.ok() ? "" : done.error().message;
  };
  EXPECT_NE(message("there").find("--force"), std::string::npos);
  EXPECT_NE(message("file", {.existing = Existing::kReplace}).find("no folder"), std::string::npos);
  EXPECT_NE(message("foreign").find("not of an interrupted"), std::string::npos);
  EXPECT_NE(message("foreign", {.unfinished = ReshardOptions::Unfinished::kRestart}).find("not of"),
            std::string::npos);
  EXPECT_NE(message("absent/out").find("No such file"), std::string::npos);
  EXPECT_NE(message("small", {.memory_bytes = 1000}).find("too few"), std::string::npos);
  // The destination would be deleted, and the source with it.
  EXPECT_NE(message("", {.existing = Existing::kReplace}).find("lie in each other"),
            std::string::npos);
  std::filesystem::create_directory(folder / "again.partial");
  std::filesystem::copy(source, folder / "again.partial/source.safetensors");
  folder.put("again.partial/" + std::string(kJournalName), "");
  const auto itself = run(folder / "again.partial", layout, folder / "again",
                          {.unfinished = ReshardOptions::Unfinished::kRestart});
  ASSERT_FALSE(itself.ok());
  EXPECT_NE(itself.error().message.find("unfinished"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder / "again.partial/source.safetensors"));
  std::filesystem::remove_all(folder / "again.partial");
  EXPECT_EQ(folder.get("there/x") + folder.get("file") + folder.get("foreign.partial/x"),
            "mineminemine");
  EXPECT_EQ(folder.names().size(), 4U);
  ASSERT_EQ(message("there", {.existing = Existing::kReplace}), "");
  EXPECT_EQ(contents_of(folder / "there"), contents_of(source));
  EXPECT_EQ(folder.names().size(), 4U);
}

TEST(ReshardRun, ArraysAreWrittenForEveryRankAndContinued) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("dp=2,tp=4", sharded(0), kTensors);
  const ReshardOptions options{.files = ReshardOptions::Files::kArrays,
                               .verify = ReshardOptions::Verify::kYes};
  ReshardOptions stopped = options;
  stopped.compared = [](uint64_t, uint64_t) { _exit(0); };
  run_and_crash(source, layout, folder / "out", stopped);
  EXPECT_NE(run(source, layout, folder / "out").error().message.find("to files of arrays"),
            std::string::npos);
  const auto done = run(source, layout, folder / "out", options);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(done->files, 8U);
  EXPECT_EQ(done->files_kept, 8U);
  EXPECT_EQ(done->bytes, 2 * 392U);
  EXPECT_EQ(done->bytes_moved, 0U);
  EXPECT_EQ(contents_of(folder / "out/rank-00001.safetensors"),
            contents_of(folder / "out/rank-00005.safetensors"));
  const auto third = Checkpoint::open(folder / "out/rank-00002.safetensors");
  const auto all = Checkpoint::open(source);
  ASSERT_TRUE(third.ok() && all.ok());
  const size_t number = *(*third)->tensors().find("a");
  EXPECT_EQ((*third)->tensors()[number].shape, (std::vector<uint64_t>{3, 6}));
  std::vector<std::byte> rows(72);
  Box box = tensor::whole(std::vector<uint64_t>{12, 6});
  box.begin[0] = 6;
  box.end[0] = 9;
  ASSERT_TRUE((*all)->read(*(*all)->tensors().find("a"), box, rows).ok());
  EXPECT_EQ(*(*third)->read_whole(number), rows);
}

TEST(ReshardJournal, ReadsWhatItWrote) {
  const ReshardRequest request{"/data/\"x\"", 7, UINT64_MAX, 100, "pieces"};
  const WrittenFile file{"shard.safetensors", 12, 0xabc};
  const std::string text = encode(request) + encode(file);
  const auto contents = decode_journal(text + encode(file).substr(0, 9));
  ASSERT_TRUE(contents.ok()) << contents.error().message;
  EXPECT_EQ(*contents, (JournalContents{request, {file}}));
  EXPECT_EQ(difference(request, request), "");
  for (size_t size = 0; size < encode(request).size(); ++size)
    EXPECT_FALSE(decode_journal(text.substr(0, size)).ok());
  for (const char* bad : {"\n", "{}\n", "[]\n", "null\n", "{\"file\": \"a\"}\n"}) {
    EXPECT_FALSE(decode_journal(bad).ok()) << bad;
    EXPECT_FALSE(decode_journal(encode(request) + bad).ok()) << bad;
  }
  WrittenFile outside = file;
  outside.name = "../x";
  EXPECT_FALSE(decode_journal(encode(request) + encode(outside)).ok());
}

TEST(ReshardJournal, DropsWhatACrashLeftOfALine) {
  const TestFolder folder;
  const std::string path = folder.put("j", "one\ntw");
  {
    const auto journal = ReshardJournal::open(path);
    ASSERT_TRUE(journal.ok());
    EXPECT_EQ((*journal)->text(), "one\n");
    ASSERT_TRUE((*journal)->append("three\n").ok());
  }
  EXPECT_EQ(folder.get("j"), "one\nthree\n");
}

// ---- What is known to go wrong in Tenplex when checkpoints are merged and split -----------------

// Shards were merged in the order in which a map gave them.
TEST(KnownDefectsOnDisk, MergeOrder) {
  Tensors tensors = {{"w", DType::kF32, {24, 3}}, {"wide", DType::kF32, {12, 24}}};
  // More than nine, so that sorting names as text would be another order.
  expect_same_through(layout_of("tp=12", sharded(0), tensors),
                      layout_of("tp=1", sharded(0), tensors));
  const std::string columns = R"({"match": "w", "replicated": true}, {"match": "wide",
                                  "shard": [{"dim": 1, "axes": ["tp"]}]})";
  expect_same_through(layout_of("tp=12", columns, tensors), layout_of("tp=2", columns, tensors));
}

// What was too small was filled with zeros; a number of dimensions that differs was a success.
TEST(KnownDefectsOnDisk, SilentPaddingAndRankMismatch) {
  const TestFolder folder;
  const std::string source = write_source(folder, {{"w", DType::kF32, {10, 2}}});
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{16, 2}, {8, 2}, {20}, {10, 2, 1}}) {
    const auto done =
        run(source, layout_of("tp=2", sharded(0), {{"w", DType::kF32, shape}}), folder / "out");
    ASSERT_FALSE(done.ok());
    EXPECT_NE(done.error().message.find("'w' is f32 [10, 2] in the checkpoint"), std::string::npos);
  }
  EXPECT_EQ(folder.names().size(), 1U);
  // Padding that is declared is in no file.
  const Tensors vocabulary = {{"w", DType::kF32, {10, 2}}};
  expect_same_through(layout_of("tp=4", sharded(0, R"(, "padded": 16, "fill": 7)"), vocabulary),
                      layout_of("tp=3", sharded(0, R"(, "padded": 12)"), vocabulary));
}

// bool("False") was true; short types could not be stored.
TEST(KnownDefectsOnDisk, BoolAndShortTypes) {
  Tensors tensors;
  for (int dtype = 0; dtype < kDTypes; ++dtype)
    tensors.push_back({to_string(static_cast<DType>(dtype)), static_cast<DType>(dtype), {12, 5}});
  expect_same_through(layout_of("tp=4", sharded(0), tensors),
                      layout_of("tp=3", sharded(0), tensors));
}

TEST(KnownDefectsOnDisk, TensorsWithoutDimensions) {
  const Tensors tensors = {{"step", DType::kI64}, {"lr", DType::kF64}, {"none", DType::kF32, {0}}};
  const std::string everywhere = R"({"match": "*", "replicated": true})";
  const std::string flat = R"({"match": "step", "flat": {"group": "a", "axes": ["tp"]}},
                             {"otherwise": true, "replicated": true})";
  expect_same_through(layout_of("tp=4", flat, tensors), layout_of("tp=2", everywhere, tensors));
}

// Dividing five by four, rounded up, overshot.
TEST(KnownDefectsOnDisk, UnevenDivision) {
  const Tensors tensors = {{"w", DType::kI16, {5, 3}}};
  expect_same_through(layout_of("tp=4", sharded(0, R"(, "split": "ceil")"), tensors),
                      layout_of("tp=4", sharded(0, R"(, "split": "balanced")"), tensors));
  expect_same_through(layout_of("tp=2", sharded(0, R"(, "split": [0, 5])"), tensors),
                      layout_of("tp=2", sharded(0, R"(, "split": [4, 1])"), tensors));
}

// Only contiguous slices along one axis, which was guessed.
TEST(KnownDefectsOnDisk, FusedGroupedAndSquareTensors) {
  const Tensors qkv = {{"qkv", DType::kBF16, {12, 2}}, {"qkv2", DType::kBF16, {12, 2}}};
  const std::string grouped = R"(, "blocks": [{"size": 8, "units": 4}, {"size": 2, "units": 2},
                                             {"size": 2, "units": 2}])";
  expect_same_through(layout_of("tp=4", sharded(0, grouped), qkv),
                      layout_of("tp=2", sharded(0, grouped), qkv));
  const Tensors square = {{"w", DType::kF32, {4, 4, 4}}};
  expect_same_through(layout_of("tp=4", sharded(2), square), layout_of("tp=2", sharded(1), square));
}

// No ZeRO; fixed numbers of layers, no uneven stages.
TEST(KnownDefectsOnDisk, FlatRangesAndUnevenStages) {
  Tensors tensors = {{"vocabulary", DType::kF32, {101, 3}}};
  for (int layer = 0; layer < 7; ++layer)
    tensors.push_back({fmt::format("layers.{}.w", layer), DType::kF32, {6, 5}});
  const std::string stages = R"({"match": "vocabulary", "stage": "first"},
                               {"match": "layers.{layer}.w", "stage": "layer"})";
  const std::string flat = R"({"match": "*", "flat": {"group": "all", "axes": ["dp", "tp"]}})";
  const Layout uneven =
      layout_of("pp=3,tp=2", stages, tensors,
                R"("pipeline": {"axis": "pp", "layers": 7, "counts": [1, 4, 2]}, )");
  expect_same_through(uneven, layout_of("dp=5,tp=1", flat, tensors));
  expect_same_through(layout_of("dp=3,tp=2", flat, tensors), uneven);
}

// Nothing told whether what was stored is what was written.
TEST(KnownDefectsOnDisk, DamageIsNoticed) {
  const TestFolder folder;
  const std::string source = write_source(folder, kTensors);
  const Layout layout = layout_of("tp=2", sharded(0), kTensors);
  auto from = Checkpoint::open(source);
  ASSERT_TRUE(from.ok());
  const auto files = plan_rank_files(layout, UINT64_MAX);
  bool damaged = false;
  const auto done =
      reshard(**from, layout, folder / "out",
              {.verify = ReshardOptions::Verify::kYes, .compared = [&](uint64_t, uint64_t) {
                 if (std::exchange(damaged, true)) return;
                 std::fstream file(folder / "out.partial/" + files->back().name,
                                   std::ios::in | std::ios::out | std::ios::binary);
                 file.seekp(-1, std::ios::end) << 'x';
               }});
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find("tensor 'd' differs"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace pliant::store
