#include "pliant/collective/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "pliant/base/bytes.h"

namespace pliant {
namespace {

size_t total(const Operation& operation, const Group& group) {
  if (operation.counts.empty()) return operation.count * static_cast<size_t>(group.size());
  return std::accumulate(operation.counts.begin(), operation.counts.end(), size_t{0});
}

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool takes_counts(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kReduceScatter;
}

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast ||
         collective == Collective::kGather || collective == Collective::kScatter ||
         is_pair(collective);
}

// Elements before the own block, where blocks of all members stand side by side.
size_t own_offset(const Operation& operation, const Group& group) {
  const auto self = static_cast<size_t>(group.self);
  if (operation.counts.empty()) return self * operation.count;
  return std::accumulate(operation.counts.begin(), operation.counts.begin() + group.self,
                         size_t{0});
}

// True if input and output share memory in a way that no collective allows.
bool overlaps_badly(const Operation& operation, const Group& group, const Sizes& sizes) {
  const auto* input = static_cast<const std::byte*>(operation.input);
  const auto* output = static_cast<const std::byte*>(operation.output);
  const size_t element = size_of(operation.dtype);
  if (input == nullptr || output == nullptr || sizes.input == 0 || sizes.output == 0) return false;
  const std::less<const std::byte*> before;
  if (!before(input, output + sizes.output * element) ||
      !before(output, input + sizes.input * element))
    return false;
  if (operation.collective == Collective::kAllToAll) return true;
  const InPlace allowed = in_place(operation, group);
  return input + allowed.output != output + allowed.input;
}

bool disjoint(const void* left, const void* right, size_t bytes) {
  const auto a = reinterpret_cast<uintptr_t>(left);
  const auto b = reinterpret_cast<uintptr_t>(right);
  return a < b ? b - a >= bytes : a - b >= bytes;
}

}  // namespace

Sizes sizes_of(const Operation& operation, const Group& group) {
  const size_t count = operation.count;
  const size_t all = total(operation, group);
  const bool root = operation.root == group.self;
  const bool unequal = !operation.counts.empty();
  const size_t own = unequal ? operation.counts[static_cast<size_t>(group.self)] : count;
  const size_t longest =
      unequal ? *std::max_element(operation.counts.begin(), operation.counts.end()) : count;
  switch (operation.collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier: return {count, count, count};
    case Collective::kReduce: return {count, root ? count : 0, count};
    case Collective::kBroadcast: return {root ? count : 0, count, count};
    case Collective::kAllGather: return {own, all, longest};
    case Collective::kGather: return {own, root ? all : 0, longest};
    case Collective::kScatter: return {root ? all : 0, own, all};
    case Collective::kReduceScatter: return {all, own, all};
    case Collective::kAllToAll: return {all, all, all};
    case Collective::kSend: return {count, 0, count};
    case Collective::kReceive: return {0, count, count};
  }
  return {};
}

uint64_t key_of(const Operation& operation, const Group& group) {
  uint64_t seed = group.id;
  if (is_pair(operation.collective)) {
    const bool sends = operation.collective == Collective::kSend;
    const std::array<Rank, 2> pair = {sends ? group.self : operation.root,
                                      sends ? operation.root : group.self};
    seed = hash64(std::as_bytes(std::span(pair)), seed);
  }
  return std::max<uint64_t>(1, hash64(operation.name, seed));
}

InPlace in_place(const Operation& operation, const Group& group) {
  const size_t offset = takes_counts(operation.collective)
                            ? own_offset(operation, group) * size_of(operation.dtype)
                            : 0;
  const bool gathers =
      operation.collective == Collective::kAllGather || operation.collective == Collective::kGather;
  return gathers ? InPlace{offset, 0} : InPlace{0, offset};
}

Operation essence(const Operation& operation, const Group& group) {
  Operation call = operation;
  if (!reduces(call.collective)) call.op = Op::kSum;
  if (!has_root(call.collective)) call.root = 0;
  if (!call.counts.empty()) call.count = total(call, group);
  if (call.collective == Collective::kBarrier) {
    call.count = 1;
    call.dtype = DType::kU8;
    call.op = Op::kMax;
    call.counts = {};
  }
  return call;
}

Status check_call(const Operation& operation, const Group& group) {
  const auto wrong = [&](const std::string& what) {
    return invalid(
        fmt::format("{} '{}': {}", to_string(operation.collective), operation.name, what));
  };
  if (static_cast<int>(operation.dtype) >= kDTypes || static_cast<int>(operation.op) >= kOps)
    return wrong("unknown type or operator");
  if (reduces(operation.collective) && !is_reducible(operation.dtype))
    return wrong("bool and f8 can be moved, not reduced; use u8 with min or max, or f16");
  if (has_root(operation.collective) && (operation.root < 0 || operation.root >= group.size()))
    return wrong(fmt::format("there is no rank {} among {}", operation.root, group.size()));
  if (!operation.counts.empty() && !takes_counts(operation.collective))
    return wrong("takes one count, not one for each rank");
  if (!operation.counts.empty() && operation.counts.size() != static_cast<size_t>(group.size()))
    return wrong(fmt::format("{} counts for {} ranks", operation.counts.size(), group.size()));
  const size_t count_max = SIZE_MAX / 64 / static_cast<size_t>(group.size());
  const auto too_large = [&](size_t count) { return count > count_max; };
  if (operation.counts.empty()
          ? too_large(operation.count)
          : std::any_of(operation.counts.begin(), operation.counts.end(), too_large))
    return wrong("the count is too large");
  if (operation.collective == Collective::kBarrier) return {};
  const Sizes sizes = sizes_of(operation, group);
  const bool root = operation.root == group.self;
  if (sizes.output > 0 && operation.output == nullptr && !operation.shared_result)
    return wrong("the output is missing");
  const bool may_be_in_place =
      operation.output != nullptr && (operation.collective == Collective::kAllReduce ||
                                      operation.collective == Collective::kAllGather ||
                                      (root && (operation.collective == Collective::kReduce ||
                                                operation.collective == Collective::kBroadcast ||
                                                operation.collective == Collective::kGather)));
  if (sizes.input > 0 && operation.input == nullptr && !may_be_in_place)
    return wrong("the input is missing");
  if (overlaps_badly(operation, group, sizes))
    return wrong("input and output overlap, and not as an operation in place");
  return {};
}

bool repeats(const Operation& call, const Operation& before) {
  if (call.collective != Collective::kAllReduce || before.collective != Collective::kAllReduce ||
      call.count != before.count || call.dtype != before.dtype || call.op != before.op ||
      call.shared_result != before.shared_result || !call.counts.empty() ||
      !before.counts.empty() || !call.left_behind.empty() || !before.left_behind.empty() ||
      call.input == nullptr || before.input == nullptr ||
      (call.output == nullptr) != (before.output == nullptr))
    return false;
  return call.output == nullptr || call.output == call.input ||
         disjoint(call.input, call.output, call.count * size_of(call.dtype));
}

}  // namespace pliant
