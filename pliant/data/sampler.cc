#include "pliant/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pliant/base/check.h"
#include "pliant/data/permutation.h"

namespace pliant {
namespace {

constexpr uint8_t kEncoding = 1;

// Adds a range behind the others, as part of the last one where they touch.
void append(std::vector<Range>& ranges, Range range) {
  if (range.size() == 0) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

// Deals positions out from the front of a list of ranges.
class Dealer {
 public:
  explicit Dealer(std::span<const Range> ranges) : rest_(ranges) {}

  std::vector<Range> deal(uint64_t count) {
    std::vector<Range> dealt;
    while (count > 0) {
      const Range& front = rest_.front();
      const uint64_t begin = front.begin + taken_;
      const uint64_t size = std::min(count, front.end - begin);
      append(dealt, {begin, begin + size});
      count -= size;
      taken_ += size;
      if (taken_ < front.size()) continue;
      rest_ = rest_.subspan(1);
      taken_ = 0;
    }
    return dealt;
  }

 private:
  std::span<const Range> rest_;
  uint64_t taken_ = 0;  // of the first range
};

// The size of one of `parts` parts, as even as it goes.
uint64_t share(uint64_t total, uint64_t parts, uint64_t index) {
  return total / parts + (index < total % parts ? 1 : 0);
}

// `from` without `taken`; both ascend, and `taken` lies inside `from`.
std::vector<Range> without(std::span<const Range> from, std::span<const Range> taken) {
  std::vector<Range> left;
  size_t next = 0;
  for (const Range& range : from) {
    uint64_t begin = range.begin;
    for (; next < taken.size() && taken[next].end <= range.end; ++next) {
      PLIANT_CHECK(taken[next].begin >= begin, "a position is consumed twice");
      append(left, {begin, taken[next].begin});
      begin = taken[next].end;
    }
    append(left, {begin, range.end});
  }
  PLIANT_CHECK(next == taken.size(), "a position is consumed twice, or is none of the epoch");
  return left;
}

// Whether the ranges are those of a state with this cursor; see SamplerState.
bool in_order(std::span<const Range> returned, uint64_t cursor) {
  uint64_t from = 0;
  for (const Range& range : returned) {
    if (range.begin < from || range.begin >= range.end || range.end >= cursor) return false;
    from = range.end + 1;
  }
  return true;
}

}  // namespace

uint64_t size_of(std::span<const Range> ranges) {
  uint64_t total = 0;
  for (const Range& range : ranges) total += range.size();
  return total;
}

std::vector<std::byte> encode(const SamplerState& state) {
  Writer writer;
  writer.put(kEncoding);
  writer.put(state.epoch);
  writer.put(state.cursor);
  writer.put(static_cast<uint64_t>(state.returned.size()));
  for (const Range& range : state.returned) {
    writer.put(range.begin);
    writer.put(range.end);
  }
  return writer.bytes();
}

Result<SamplerState> decode_sampler_state(Bytes bytes) {
  constexpr size_t kRangeBytes = 2 * sizeof(uint64_t);
  Reader reader(bytes);
  SamplerState state;
  const auto encoding = reader.take<uint8_t>();
  state.epoch = reader.take<uint64_t>();
  state.cursor = reader.take<uint64_t>();
  const auto count = reader.take<uint64_t>();
  if (!reader.ok() || count > reader.left() / kRangeBytes)
    return invalid("the state of a sampler is cut short or names more ranges than it holds");
  if (encoding != kEncoding)
    return invalid("the state of a sampler has an encoding that is not known here");
  state.returned.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const auto begin = reader.take<uint64_t>();
    const auto end = reader.take<uint64_t>();
    state.returned.push_back({begin, end});
  }
  if (!reader.finished()) return invalid("the state of a sampler is followed by more bytes");
  if (state.epoch > SamplerOptions::kEpochsMax || state.cursor > Permutation::kSizeMax ||
      !in_order(state.returned, state.cursor))
    return invalid("the state of a sampler holds an epoch, cursor or range that cannot be");
  return state;
}

uint64_t Draw::samples() const {
  uint64_t total = 0;
  for (const auto& ranges : members) total += size_of(ranges);
  return total;
}

uint64_t contributed_samples(const Draw& draw, std::span<const bool> contributed) {
  PLIANT_CHECK(contributed.size() == draw.members.size(), "one flag for each member of the draw");
  uint64_t total = 0;
  for (size_t member = 0; member < contributed.size(); ++member)
    if (contributed[member]) total += size_of(draw.members[member]);
  return total;
}

Draw redraw_lost(const Draw& draw, std::span<const bool> contributed, std::span<const bool> able) {
  PLIANT_CHECK(contributed.size() == draw.members.size() && able.size() == draw.members.size(),
               "one flag for each member of the draw");
  std::vector<Range> lost;
  for (size_t member = 0; member < contributed.size(); ++member)
    if (!contributed[member])
      for (const Range& range : draw.members[member]) append(lost, range);

  Draw redrawn{.epoch = draw.epoch, .members = std::vector<std::vector<Range>>(able.size())};
  const uint64_t total = size_of(lost);
  const auto parts = static_cast<uint64_t>(std::ranges::count(able, true));
  Dealer dealer(lost);
  uint64_t part = 0;
  for (size_t member = 0; member < able.size(); ++member)
    if (able[member]) redrawn.members[member] = dealer.deal(share(total, parts, part++));
  return redrawn;
}

Result<Sampler> Sampler::make(const SamplerOptions& options, SamplerState state) {
  PLIANT_TRY(check(options));
  const bool consumed = state.cursor == options.samples && state.returned.empty();
  if (state.epoch > SamplerOptions::kEpochsMax || state.cursor > options.samples || consumed ||
      !in_order(state.returned, state.cursor))
    return invalid(fmt::format(
        "the sampler's cursor (epoch {}, position {}) is none of a dataset of {} samples",
        state.epoch, state.cursor, options.samples));
  return Sampler(options, std::move(state));
}

Sampler::Sampler(const SamplerOptions& options, SamplerState state)
    : options_(options), state_(std::move(state)) {}

std::vector<Range> Sampler::remaining() const {
  std::vector<Range> ranges = state_.returned;
  append(ranges, {state_.cursor, options_.samples});
  return ranges;
}

Status Sampler::set_global_batch(uint64_t samples) {
  if (options_.batch_per_member != 0)
    return invalid(fmt::format(
        "the global batch cannot be set to {}: the sampler has a batch per member ({}), which "
        "follows their number",
        samples, options_.batch_per_member));
  SamplerOptions changed = options_;
  changed.global_batch = samples;
  PLIANT_TRY(check(changed));
  options_ = changed;
  return {};
}

Draw Sampler::draw(int members) const {
  PLIANT_CHECK(members >= 1, "a step has members");
  const auto parts = static_cast<size_t>(members);
  Draw drawn{.epoch = state_.epoch, .members = std::vector<std::vector<Range>>(parts)};
  if (done()) return drawn;
  const std::vector<Range> ranges = remaining();
  const uint64_t total = std::min(options_.batch_of(parts), size_of(ranges));
  Dealer dealer(ranges);
  for (size_t member = 0; member < parts; ++member)
    drawn.members[member] = dealer.deal(share(total, parts, member));
  return drawn;
}

void Sampler::commit(const Draw& draw, std::span<const bool> contributed) {
  PLIANT_CHECK(contributed.size() == draw.members.size(), "one flag for each member of the draw");
  PLIANT_CHECK(draw.epoch == state_.epoch, "a draw is committed in its own epoch");
  std::vector<Range> taken;
  for (size_t member = 0; member < contributed.size(); ++member)
    if (contributed[member])
      taken.insert(taken.end(), draw.members[member].begin(), draw.members[member].end());
  if (taken.empty()) return;
  PLIANT_CHECK(!done(), "all epochs have been consumed");
  std::ranges::sort(taken, {}, &Range::begin);

  std::vector<Range> left = without(remaining(), taken);
  if (left.empty()) {
    state_ = {.epoch = state_.epoch + 1, .cursor = 0, .returned = {}};
    return;
  }
  state_.cursor = options_.samples;
  if (left.back().end == options_.samples) {
    state_.cursor = left.back().begin;
    left.pop_back();
  }
  state_.returned = std::move(left);
}

std::vector<uint64_t> Sampler::indices(const Draw& draw, size_t member) const {
  const std::vector<Range>& ranges = draw.members.at(member);
  const Permutation order(options_.samples, options_.seed, draw.epoch);
  std::vector<uint64_t> numbers;
  numbers.reserve(size_of(ranges));
  for (const Range& range : ranges)
    for (uint64_t position = range.begin; position < range.end; ++position)
      numbers.push_back(options_.shuffle ? order.at(position) : position);
  return numbers;
}

}  // namespace pliant
