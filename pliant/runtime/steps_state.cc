// How newcomers get the state: between two steps, from several members at once, verified.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "pliant/base/checksum.h"
#include "pliant/base/defect.h"
#include "pliant/runtime/steps.h"

namespace pliant {
namespace {

constexpr uint32_t kManifestMagic = 0x504c5355;
constexpr size_t kManifestBytesMax = size_t{64} << 20;
// More sources would not be faster: each newcomer copies by itself.
constexpr size_t kSourcesMax = 4;
constexpr size_t kInFlightMax = 8;
constexpr size_t kSliceAlignment = 4096;

// What the sources are to one buffer: each gives a part, or the first of them all of it.
std::span<std::byte> slice(std::span<std::byte> memory, StateKind kind, size_t part, size_t parts) {
  if (kind == StateKind::kOwn) return part == 0 ? memory : memory.subspan(memory.size());
  const auto cut = [&](size_t at) {
    if (at == parts) return memory.size();
    return memory.size() * at / parts / kSliceAlignment * kSliceAlignment;
  };
  return memory.subspan(cut(part), cut(part + 1) - cut(part));
}

Operation broadcast_of(const std::string& name, void* data, size_t bytes, Rank root) {
  Operation operation;
  operation.collective = Collective::kBroadcast;
  operation.name = name;
  operation.input = data;
  operation.output = data;
  operation.count = bytes;
  operation.dtype = DType::kU8;
  operation.root = root;
  return operation;
}

}  // namespace

// The members wait while a newcomer copies: its pages should be there by then.
void Steps::touch_state() {
  constexpr size_t kPage = 4096;
  for (const State& state : states_)
    for (size_t at = 0; at < state.memory.size(); at += kPage) {
      volatile std::byte& byte = state.memory[at];
      byte = byte;
    }
}

Status Steps::give_state() {
  const Instant began = ground_.time();
  const Group& world = ground_.world();
  const bool gives =
      std::find(active_ranks_.begin(), active_ranks_.end(), world.self) != active_ranks_.end();
  PLIANT_TRY(exchange_manifest(gives, active_ranks_.front()));
  std::vector<Rank> sources = active_ranks_;
  if (sources.size() > kSourcesMax) sources.resize(kSourcesMax);
  PLIANT_TRY(move_state(gives, sources));
  has_state_ = true;
  Operation meeting;
  meeting.collective = Collective::kBarrier;
  meeting.name = "pliant/state/end";
  PLIANT_TRY(ground_.run(meeting, world, nullptr));
  newcomers_ = false;
  contributors_known_ = false;
  active_ = world;
  active_ranks_.clear();
  for (Rank rank = 0; rank < world.size(); ++rank) active_ranks_.push_back(rank);
  times_.transfer = ground_.time() - began;
  times_.transfer_bytes = 0;
  for (const State& state : states_) times_.transfer_bytes += state.memory.size();
  redo_began_ = ground_.time();
  return {};
}

std::vector<std::byte> Steps::manifest() const {
  Writer writer;
  writer.put(kManifestMagic);
  writer.put(committed_);
  writer.put(samples_total_);
  writer.put(static_cast<uint8_t>(sampler_ ? 1 : 0));
  const auto put_bytes = [&](Bytes bytes) {
    writer.put_string({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  if (sampler_) {
    put_bytes(encode(sampler_->options()));
    put_bytes(encode(sampler_->state()));
  }
  put_bytes(options_.settings ? options_.settings() : std::vector<std::byte>{});
  put_bytes(options_.notes ? options_.notes() : std::vector<std::byte>{});
  writer.put(static_cast<uint32_t>(states_.size()));
  for (const State& state : states_) {
    writer.put_string(state.name);
    writer.put(static_cast<uint64_t>(state.memory.size()));
    writer.put(static_cast<uint8_t>(state.dtype));
    writer.put(static_cast<uint8_t>(state.kind));
  }
  return writer.bytes();
}

Status Steps::exchange_manifest(bool has_state, Rank root) {
  const Group& world = ground_.world();
  std::vector<std::byte> bytes;
  if (has_state) bytes = manifest();
  uint64_t size = bytes.size();
  PLIANT_TRY(
      ground_.run(broadcast_of("pliant/state/size", &size, sizeof size, root), world, nullptr));
  if (size > kManifestBytesMax) return invalid("the description of the state is too large");
  // Everybody receives it; who has the state keeps its own.
  bytes.resize(size);
  PLIANT_TRY(
      ground_.run(broadcast_of("pliant/state/manifest", bytes.data(), size, root), world, nullptr));
  if (has_state) return {};
  spoiled_ = true;
  return take_manifest(bytes);
}

Status Steps::take_manifest(Bytes bytes) {
  Reader reader(bytes);
  const auto differs = [&](const std::string& what) {
    return invalid(
        fmt::format("this worker cannot join: {}; all workers must register the same "
                    "state and sampler before their first step",
                    what));
  };
  const auto bytes_of = [](const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  };
  if (reader.take<uint32_t>() != kManifestMagic) return differs("the state has no description");
  const auto committed = reader.take<uint64_t>();
  const auto samples = reader.take<uint64_t>();
  const bool sampled = reader.take<uint8_t>() != 0;
  if (sampled != sampler_.has_value())
    return differs(sampled ? "the others use a sampler, it does not"
                           : "it uses a sampler, the others do not");
  if (sampled) {
    const auto options = decode_sampler_options(bytes_of(reader.take_string(kManifestBytesMax)));
    if (!options) return differs("the others' sampler: " + options.error().message);
    if (const std::string other = difference(sampler_->options(), *options); !other.empty())
      return differs(other);
    auto state = decode_sampler_state(bytes_of(reader.take_string(kManifestBytesMax)));
    if (!state) return differs("its sampler: " + state.error().message);
    auto sampler = Sampler::make(*options, std::move(*state));
    if (!sampler) return differs("its sampler: " + sampler.error().message);
    sampler_ = std::move(*sampler);
  }
  const std::string settings = reader.take_string(kManifestBytesMax);
  const std::string notes = reader.take_string(kManifestBytesMax);
  const auto count = reader.take<uint32_t>();
  std::vector<std::string> theirs;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    const std::string name = reader.take_string(256);
    const auto size = reader.take<uint64_t>();
    const auto dtype = static_cast<DType>(reader.take<uint8_t>());
    const auto kind = static_cast<StateKind>(reader.take<uint8_t>());
    theirs.push_back(name);
    const auto mine = std::find_if(states_.begin(), states_.end(),
                                   [&](const State& state) { return state.name == name; });
    if (mine == states_.end()) return differs(fmt::format("it lacks state '{}'", name));
    if (mine->memory.size() != size)
      return differs(fmt::format("its state '{}' has {} bytes, the others' {}", name,
                                 mine->memory.size(), size));
    if (mine->dtype != dtype)
      return differs(fmt::format("its state '{}' is {}, the others' {}", name,
                                 to_string(mine->dtype), to_string(dtype)));
    if (mine->kind != kind)
      return differs(fmt::format("its state '{}' is of kind {}, the others' of kind {}", name,
                                 to_string(mine->kind), to_string(kind)));
    // The order may differ: it is theirs that counts.
    std::iter_swap(mine, states_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (!reader.finished()) return differs("the description of the state is damaged");
  if (states_.size() != theirs.size())
    return differs(
        fmt::format("it has state '{}', the others do not", states_[theirs.size()].name));
  if (options_.adopt_settings) PLIANT_TRY(options_.adopt_settings(bytes_of(settings)));
  if (options_.adopt_notes) PLIANT_TRY(options_.adopt_notes(bytes_of(notes)));
  committed_ = committed;
  samples_total_ = samples;
  return {};
}

// Part p of every buffer goes from source p to all newcomers: a group of its own. Where members
// differ the first source gives all of it.
Status Steps::move_state(bool gives, const std::vector<Rank>& sources) {
  const Group& world = ground_.world();
  std::vector<Rank> newcomers;
  for (Rank rank = 0; rank < world.size(); ++rank)
    if (std::find(active_ranks_.begin(), active_ranks_.end(), rank) == active_ranks_.end())
      newcomers.push_back(rank);
  struct Transfer {
    std::string name;
    Operation operation;
    std::atomic<bool> done = false;
    Status status;
  };
  std::deque<std::unique_ptr<Transfer>> in_flight;
  Status first;
  const auto finish_one = [&] {
    ground_.wait(in_flight.front()->done);
    if (first.ok() && !in_flight.front()->status.ok()) first = in_flight.front()->status.error();
    in_flight.pop_front();
  };
  std::vector<std::vector<uint64_t>> sums(sources.size(), std::vector<uint64_t>(states_.size()));
  std::vector<Group> groups(sources.size());
  for (size_t part = 0; part < sources.size(); ++part) {
    if (gives && sources[part] != world.self) continue;
    std::vector<Rank> ranks = {sources[part]};
    ranks.insert(ranks.end(), newcomers.begin(), newcomers.end());
    groups[part] = group_of(ranks);
  }
  const auto part_of = [&](const State& state, size_t part) {
    return slice(state.memory, state.kind, part, sources.size());
  };
  // Buffers outside, parts inside: a newcomer takes from all sources at once.
  for (size_t index = 0; index < states_.size() && first.ok(); ++index)
    for (size_t part = 0; part < sources.size(); ++part) {
      if (groups[part].members.empty()) continue;
      const std::span<std::byte> data = part_of(states_[index], part);
      if (data.empty()) continue;
      auto transfer = std::make_unique<Transfer>();
      transfer->name = fmt::format("pliant/state/{}/{}", index, part);
      transfer->operation = broadcast_of(transfer->name, data.data(), data.size(), 0);
      Transfer* const raw = transfer.get();
      in_flight.push_back(std::move(transfer));
      ground_.start(raw->operation, groups[part], [raw](const Status& status, const std::byte*) {
        if (!status.ok()) raw->status = status.error();
        raw->done.store(true, std::memory_order_release);
        raw->done.notify_all();
      });
      if (gives) sums[part][index] = checksum64(data);
      if (in_flight.size() >= kInFlightMax) finish_one();
    }
  while (!in_flight.empty()) finish_one();
  if (!first.ok()) return first;
  for (size_t part = 0; part < sources.size(); ++part) {
    if (groups[part].members.empty() || states_.empty()) continue;
    const std::string name = fmt::format("pliant/state/sums/{}", part);
    PLIANT_TRY(
        ground_.run(broadcast_of(name, sums[part].data(), sums[part].size() * sizeof(uint64_t), 0),
                    groups[part], nullptr));
    for (size_t index = 0; !gives && index < states_.size(); ++index) {
      const std::span<std::byte> data = part_of(states_[index], part);
      if (!data.empty() && checksum64(data) != sums[part][index] &&
          test_defect() != Defect::kChecksumSkipped)
        return invalid(fmt::format("state '{}' arrived damaged from {}", states_[index].name,
                                   ground_.view().describe(world.peer(sources[part]))));
    }
  }
  return {};
}

}  // namespace pliant
