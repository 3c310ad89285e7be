// Collective calls of all ranks together, for tests: their buffers, what they must give, and a
// comparison whose failure says which call it was.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pliant/collective/reduce_reference.h"
#include "pliant/collective/test_cluster.h"

namespace pliant {

using Data = std::vector<std::byte>;

enum class Memory : uint8_t { kPlain, kRegistered, kMixed };
enum class Place : uint8_t { kApart, kInPlace };

// A call that every rank makes, with what distinguishes the ranks left out.
struct Case {
  Collective collective = Collective::kAllReduce;
  DType dtype = DType::kF32;
  Op op = Op::kSum;
  size_t count = 5;
  Rank root = 0;
  std::vector<size_t> counts = {};
  Memory memory = Memory::kPlain;
  Place place = Place::kApart;
  bool shared_result = false;
  uint64_t mark = 0;

  size_t block(Rank rank) const {
    return counts.empty() ? count : counts[static_cast<size_t>(rank)];
  }
  size_t before(Rank rank) const {
    size_t sum = 0;
    for (Rank r = 0; r < rank; ++r) sum += block(r);
    return sum;
  }
  std::string describe() const {
    return fmt::format("{} {} {} count={} root={} counts=[{}]{}{}{}", to_string(collective),
                       to_string(dtype), to_string(op), count, root, fmt::join(counts, ","),
                       memory == Memory::kPlain   ? " plain"
                       : memory == Memory::kMixed ? " mixed"
                                                  : " registered",
                       place == Place::kInPlace ? " in place" : "", shared_result ? " shared" : "");
  }
};

inline bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

// ---- What goes in and what must come out --------------------------------------------------------

inline void append_value(Data& data, DType dtype, int value) {
  using namespace reduce_reference;
  switch (dtype) {
    case DType::kI8: return append(data, static_cast<int8_t>(value));
    case DType::kI16: return append(data, static_cast<int16_t>(value));
    case DType::kI32: return append(data, static_cast<int32_t>(value));
    case DType::kI64: return append(data, static_cast<int64_t>(value));
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2: return append(data, static_cast<uint8_t>(value));
    case DType::kU16: return append(data, static_cast<uint16_t>(value));
    case DType::kU32: return append(data, static_cast<uint32_t>(value));
    case DType::kU64: return append(data, static_cast<uint64_t>(value));
    case DType::kBool: return append(data, static_cast<uint8_t>(value & 1));
    case DType::kF16: return append(data, encode(static_cast<float>(value), kHalf));
    case DType::kBF16: return append(data, encode(static_cast<float>(value), kBrain));
    case DType::kF32: return append(data, static_cast<float>(value));
    case DType::kF64: return append(data, static_cast<double>(value));
  }
}

// Whole numbers so small that every order of combining them gives the same bits.
inline Data values(const Case& call, Rank rank, size_t count) {
  Data data;
  data.reserve(count * size_of(call.dtype));
  for (size_t i = 0; i < count; ++i) {
    const int mixed = static_cast<int>((i * 17 + static_cast<size_t>(rank) * 31) % 23);
    const int value = call.op == Op::kProd ? 1 + (mixed % 5 == 0 ? 1 : 0) : mixed - 11;
    append_value(data, call.dtype, value);
  }
  return data;
}

// Elements of a rank's input and output.
struct Extent {
  size_t input = 0;
  size_t output = 0;
};
inline Extent extent(const Case& call, Rank rank, Rank size) {
  const size_t all = call.before(size);
  const size_t count = call.count;
  const bool root = rank == call.root;
  switch (call.collective) {
    case Collective::kAllReduce: return {count, count};
    case Collective::kReduce: return {count, root ? count : 0};
    case Collective::kBroadcast: return {root ? count : 0, count};
    case Collective::kAllGather: return {call.block(rank), all};
    case Collective::kGather: return {call.block(rank), root ? all : 0};
    case Collective::kScatter: return {root ? all : 0, call.block(rank)};
    case Collective::kReduceScatter: return {all, call.block(rank)};
    case Collective::kAllToAll: return {all, all};
    default: return {};
  }
}

inline Data slice(const Data& data, size_t first, size_t count, size_t element) {
  const auto from = data.begin() + static_cast<std::ptrdiff_t>(first * element);
  return {from, from + static_cast<std::ptrdiff_t>(count * element)};
}

inline Data combined(const Case& call, const std::vector<Data>& inputs, size_t count) {
  std::vector<ReduceInput> parts;
  for (const Data& input : inputs) parts.push_back({.data = input.data(), .partial = false});
  Reduction reduction;
  reduction.dtype = call.dtype;
  reduction.op = call.op;
  reduction.count = count;
  reduction.inputs = parts;
  reduction.mean_over = static_cast<int>(inputs.size());
  return reduce_reference::reference(reduction);
}

inline void append_to(Data& data, const Data& more) {
  data.insert(data.end(), more.begin(), more.end());
}

// What every rank's output must be, computed from all inputs at once.
inline std::vector<Data> expected(const Case& call, const std::vector<Data>& inputs) {
  const auto size = static_cast<Rank>(inputs.size());
  const size_t element = size_of(call.dtype);
  const size_t all = call.before(size);
  Data whole;
  if (reduces(call.collective))
    whole =
        combined(call, inputs, call.collective == Collective::kReduceScatter ? all : call.count);
  if (call.collective == Collective::kAllGather || call.collective == Collective::kGather)
    for (const Data& input : inputs) append_to(whole, input);
  if (call.collective == Collective::kBroadcast || call.collective == Collective::kScatter)
    whole = inputs[static_cast<size_t>(call.root)];
  std::vector<Data> outputs;
  for (Rank rank = 0; rank < size; ++rank) {
    Data output;
    switch (call.collective) {
      case Collective::kReduceScatter:
      case Collective::kScatter:
        output = slice(whole, call.before(rank), call.block(rank), element);
        break;
      case Collective::kAllToAll:
        for (const Data& input : inputs)
          append_to(output, slice(input, call.before(rank), call.count, element));
        break;
      default:
        if (extent(call, rank, size).output > 0) output = whole;
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

// ---- Buffers ------------------------------------------------------------------------------------

// Memory of a rank, plain or registered, between two stretches that nobody may touch.
class TestBuffer final {
 public:
  TestBuffer(Segment* registered, size_t bytes) : segment_(registered), bytes_(bytes) {
    if (segment_ != nullptr) {
      auto memory = segment_->allocate(bytes + 2 * kGuard);
      PLIANT_CHECK(memory.ok(), "the test's heap is too small");
      begin_ = memory->data();
    } else {
      plain_.resize(bytes + 2 * kGuard);
      begin_ = plain_.data();
    }
    std::memset(begin_, kUntouched, bytes + 2 * kGuard);
  }
  ~TestBuffer() {
    if (segment_ != nullptr) segment_->release(begin_);
  }
  TestBuffer(const TestBuffer&) = delete;
  TestBuffer& operator=(const TestBuffer&) = delete;

  std::byte* data() { return begin_ + kGuard; }
  Data copy() const { return {begin_ + kGuard, begin_ + kGuard + bytes_}; }
  bool guards_intact() const {
    for (size_t i = 0; i < kGuard; ++i)
      if (begin_[i] != std::byte{kUntouched} ||
          begin_[kGuard + bytes_ + i] != std::byte{kUntouched})
        return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kUntouched = 0xa5;
  Segment* const segment_;
  const size_t bytes_;
  std::vector<std::byte> plain_;
  std::byte* begin_ = nullptr;
};

// ---- A call of all ranks ------------------------------------------------------------------------

// One call in flight on some ranks of a cluster: makes the buffers, begins, and judges.
class TestCall final {
 public:
  // `ranks` of the cluster, in the order of their ranks in the group.
  TestCall(TestCluster& cluster, const Case& call, std::string name, std::vector<Rank> ranks)
      : cluster_(cluster), call_(call), name_(std::move(name)), ranks_(std::move(ranks)) {
    for (Rank r = 0; r < size(); ++r)
      inputs_.push_back(values(call_, r, extent(call_, r, size()).input));
    parts_.resize(ranks_.size());
  }
  TestCall(TestCluster& cluster, const Case& call, std::string name)
      : TestCall(cluster, call, std::move(name), everyone(cluster)) {}

  // The inputs, if they are not to be those of values().
  void set_inputs(std::vector<Data> inputs) { inputs_ = std::move(inputs); }

  // Begins on one rank of the group. `change` may make that rank's call another.
  template <typename Change>
  void begin(Rank rank, Change change) {
    Part& part = parts_[static_cast<size_t>(rank)];
    const Rank process = ranks_[static_cast<size_t>(rank)];
    make_buffers(rank, part);
    Operation operation;
    operation.collective = call_.collective;
    operation.name = name_;
    operation.input = part.input_data;
    operation.output = part.output_data;
    operation.count = call_.count;
    operation.dtype = call_.dtype;
    operation.op = call_.op;
    operation.root = call_.root;
    operation.counts = call_.counts;
    operation.shared_result = call_.shared_result;
    operation.mark = call_.mark;
    change(operation);
    auto begun = cluster_.executor(process).begin(operation, cluster_.group(ranks_, process));
    if (!begun) {
      part.status.emplace(begun.error());
      return;
    }
    part.execution = *begun;
    cluster_.executor(process).adopt(*part.execution, cluster_.now());
  }
  void begin(Rank rank) {
    begin(rank, [](Operation&) {});
  }
  void begin() {
    for (const Rank process : cluster_.order())
      for (Rank rank = 0; rank < size(); ++rank)
        if (ranks_[static_cast<size_t>(rank)] == process) begin(rank);
  }

  bool done() const {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
      return part.execution == nullptr || part.execution->finished();
    });
  }

  bool runs_alone(Rank rank) const {
    return parts_[static_cast<size_t>(rank)].execution->runs_alone();
  }
  bool finished(Rank rank) const {
    const Part& part = parts_[static_cast<size_t>(rank)];
    return part.execution != nullptr && part.execution->finished();
  }

  // Ends it on every rank that has begun; those that have not finished are left alone.
  void release() {
    for (Rank rank = 0; rank < size(); ++rank) {
      Part& part = parts_[static_cast<size_t>(rank)];
      if (part.execution == nullptr || !part.execution->finished()) continue;
      part.status.emplace(part.execution->take_status());
      part.result_at = part.execution->result();
      const size_t bytes = extent(call_, rank, size()).output * size_of(call_.dtype);
      if (call_.shared_result && part.status->ok() && bytes > 0)
        part.shared.assign(part.execution->result(), part.execution->result() + bytes);
      cluster_.executor(ranks_[static_cast<size_t>(rank)]).release(*part.execution);
      part.execution = nullptr;
    }
  }

  // Runs it to the end on all ranks and compares with the reference.
  void run() {
    begin();
    cluster_.run_until([&] { return done(); });
    judge();
  }
  // The outcome against the reference; `where` is added to what a failure says.
  void judge(const std::string& where = "") {
    EXPECT_TRUE(done()) << "hangs: " << describe() << where;
    release();
    const std::vector<Data> wanted = expected(call_, inputs_);
    for (Rank rank = 0; rank < size(); ++rank) {
      Part& part = parts_[static_cast<size_t>(rank)];
      const std::string what = describe() + fmt::format(" on rank {}", rank) + where;
      ASSERT_TRUE(part.status.has_value()) << what;
      ASSERT_TRUE(part.status->ok()) << what << ": " << part.status->error().message;
      const Data& want = wanted[static_cast<size_t>(rank)];
      ASSERT_TRUE(output(rank) == want) << what << ": wrong " << first_difference(rank, want);
      ASSERT_TRUE(part.input->guards_intact() && part.output->guards_intact())
          << what << ": wrote outside of its buffers";
      if (part.apart) {
        ASSERT_TRUE(part.input->copy() == inputs_[static_cast<size_t>(rank)])
            << what << ": changed its input";
      }
    }
  }

  Data output(Rank rank) const {
    const Part& part = parts_[static_cast<size_t>(rank)];
    if (call_.shared_result) return part.shared;
    const size_t element = size_of(call_.dtype);
    const size_t first = static_cast<size_t>(part.output_data - part.output->data());
    return slice(part.output->copy(), first / element, extent(call_, rank, size()).output, element);
  }
  // After release().
  const Status& status(Rank rank) const { return *parts_[static_cast<size_t>(rank)].status; }
  // Where a shared result stood.
  const std::byte* result_at(Rank rank) const {
    return parts_[static_cast<size_t>(rank)].result_at;
  }
  bool ended(Rank rank) const { return parts_[static_cast<size_t>(rank)].status.has_value(); }

  std::string describe() const {
    std::string hosts;
    for (const Rank rank : ranks_) hosts += fmt::format("{} ", cluster_.peer(rank).host);
    return fmt::format("'{}': {} over {} ranks on hosts {}", name_, call_.describe(), size(),
                       hosts);
  }

 private:
  struct Part {
    std::unique_ptr<TestBuffer> input;
    std::unique_ptr<TestBuffer> output;
    std::byte* input_data = nullptr;
    std::byte* output_data = nullptr;
    bool apart = true;
    Execution* execution = nullptr;
    std::optional<Status> status;
    Data shared;
    const std::byte* result_at = nullptr;
  };

  static std::vector<Rank> everyone(const TestCluster& cluster) {
    std::vector<Rank> ranks(static_cast<size_t>(cluster.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  Rank size() const { return static_cast<Rank>(ranks_.size()); }

  void make_buffers(Rank rank, Part& part) {
    const bool registered =
        call_.memory == Memory::kRegistered || (call_.memory == Memory::kMixed && rank % 2 == 0);
    Segment* segment = registered ? &cluster_.segment(ranks_[static_cast<size_t>(rank)]) : nullptr;
    const size_t element = size_of(call_.dtype);
    const Extent elements = extent(call_, rank, size());
    const Data& data = inputs_[static_cast<size_t>(rank)];
    const bool gathers =
        call_.collective == Collective::kAllGather || call_.collective == Collective::kGather;
    part.apart = call_.place == Place::kApart || call_.collective == Collective::kAllToAll ||
                 elements.input == 0 || elements.output == 0;
    // In place, the larger of the two holds the other.
    part.input = std::make_unique<TestBuffer>(
        segment, part.apart ? elements.input * element
                            : std::max(elements.input, elements.output) * element);
    part.output = std::make_unique<TestBuffer>(segment, part.apart ? elements.output * element : 0);
    part.input_data = part.input->data();
    part.output_data = part.output->data();
    if (!part.apart) {
      part.output_data = part.input->data();
      const bool blocks = gathers || call_.collective == Collective::kScatter ||
                          call_.collective == Collective::kReduceScatter;
      const size_t offset = blocks ? call_.before(rank) * element : 0;
      (gathers ? part.input_data : part.output_data) += offset;
      std::swap(part.input, part.output);  // output() reads from there
    }
    if (!data.empty()) std::memcpy(part.input_data, data.data(), data.size());
  }

  std::string first_difference(Rank rank, const Data& want) const {
    const Data got = output(rank);
    if (got.size() != want.size()) return fmt::format("size {} for {}", got.size(), want.size());
    const auto at = std::mismatch(got.begin(), got.end(), want.begin());
    const auto index = static_cast<size_t>(at.first - got.begin());
    return fmt::format("at element {} of {} (byte 0x{:02x} for 0x{:02x})",
                       index / size_of(call_.dtype), got.size() / size_of(call_.dtype),
                       static_cast<unsigned>(*at.first), static_cast<unsigned>(*at.second));
  }

  TestCluster& cluster_;
  const Case call_;
  const std::string name_;
  const std::vector<Rank> ranks_;
  std::vector<Data> inputs_;
  std::vector<Part> parts_;
};

// Calls of all ranks at once; every failure says which one it was.
class TestBatch final {
 public:
  explicit TestBatch(TestCluster& cluster, std::string where)
      : cluster_(cluster), where_(std::move(where)) {}

  void add(const Case& call, std::string name) {
    calls_.push_back(std::make_unique<TestCall>(cluster_, call, std::move(name)));
    calls_.back()->begin();
  }
  void finish() {
    cluster_.run_until([&] {
      return std::all_of(calls_.begin(), calls_.end(), [](const auto& c) { return c->done(); });
    });
    for (auto& call : calls_) {
      call->judge(where_);
      if (::testing::Test::HasFatalFailure()) break;
    }
    calls_.clear();
  }

 private:
  TestCluster& cluster_;
  const std::string where_;
  std::vector<std::unique_ptr<TestCall>> calls_;
};

}  // namespace pliant
