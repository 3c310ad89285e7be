// A worker for the tests of reshape(): fills a sharded state with values that tell where each
// element belongs, changes its layout again and again, and looks at every element each time.
//   reshape_worker sequence [--cap BYTES] LAYOUT...  one after the other, then a line of JSON
//   reshape_worker memory [--percent N] LAYOUT...    likewise, with at most so much of what a
//   member
//       gets besides; the line tells what the kernel has counted
//   reshape_worker faults [--cap BYTES] [--snapshot] RECORDS LAYOUT...  until it is told to end;
//       whenever all are there, one dies in the middle of a change
//   reshape_worker wrong    calls that must fail, and a state that must stay
// LAYOUT is "dp=2,tp=2" of a small model, or the path of a layout with tensors; in `faults` each
// number of members uses those that are for as many. A line of JSON for each event goes to a file
// with the pid as its name in the folder RECORDS.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/runtime/reshape.h"
#include "pliant/runtime/session.h"
#include "pliant/tensor/copies.h"
#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/presets.h"

namespace {

using pliant::Code;
using pliant::Error;
using pliant::Rank;
using pliant::Result;
using pliant::ShardedState;
using pliant::Status;
using pliant::tensor::Layout;
using pliant::tensor::Model;
using pliant::tensor::Piece;
using pliant::tensor::TensorInfo;

// Grouped heads, experts, a vocabulary that must be padded: what layouts are difficult for.
Model small_model() {
  constexpr uint64_t kHidden = 64;
  return {.name = "small",
          .family = Model::Family::kLlama,
          .layers = 4,
          .hidden = kHidden,
          .heads = 8,
          .kv_heads = 4,
          .head_size = kHidden / 8,
          .inner = kHidden * 3,
          .vocabulary = 301,
          .experts = 4};
}

Result<Layout> read_layout(const std::string& text) {
  if (text.ends_with(".json")) {
    std::ifstream file(text);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    auto document = pliant::tensor::parse_layout(content);
    if (!document) return document.error();
    if (!document->collection) return pliant::invalid(text + ": has no tensors");
    return Layout::make(document->spec, std::make_shared<const pliant::tensor::Collection>(
                                            std::move(*document->collection)));
  }
  auto parallelism = pliant::tensor::parse_parallelism(text);
  if (!parallelism) return parallelism.error();
  const Model model = small_model();
  auto state = pliant::tensor::make_state(model, pliant::DType::kBF16);
  if (!state) return state.error();
  auto spec = pliant::tensor::make_spec(model, *parallelism, 0);
  if (!spec) return spec.error();
  return Layout::make(std::move(*spec),
                      std::make_shared<const pliant::tensor::Collection>(std::move(*state)));
}

// The bytes of element `index` of a tensor.
uint64_t value_of(uint64_t name, uint64_t index) {
  uint64_t value = (name + index) * 0x9e3779b97f4a7c15u;
  value ^= value >> 29;
  return value * 0xbf58476d1ce4e5b9u >> 3;
}

// Calls use(at, value) for each element of a piece: where it is in its buffer, and what it holds.
template <typename Use>
void for_each_element(const Piece& piece, const TensorInfo& tensor, Use use) {
  const uint64_t name = pliant::hash64(tensor.name);
  const auto strides = pliant::tensor::strides_of(tensor.shape);
  const pliant::tensor::Box& box = piece.box;
  pliant::tensor::Coordinates at = box.begin;
  while (true) {
    uint64_t index = 0;
    uint64_t place = piece.offset;
    for (uint32_t d = 0; d < box.dims; ++d) {
      index += at[d] * strides[d];
      place += (at[d] - box.begin[d]) * piece.strides[d];
    }
    const uint64_t run = box.dims == 0 ? 1 : box.extent(box.dims - 1);
    const uint64_t step = box.dims == 0 ? 1 : piece.strides[box.dims - 1];
    for (uint64_t i = 0; i < run; ++i) use(place + i * step, value_of(name, index + i));
    uint32_t d = box.dims < 2 ? 0 : box.dims - 1;
    while (d > 0 && ++at[d - 1] == box.end[d - 1]) {
      --d;
      at[d] = box.begin[d];
    }
    if (d == 0) return;
  }
}

void fill(ShardedState& state) {
  for (const Piece& piece : state.holding().pieces) {
    const TensorInfo& tensor = state.layout().collection()[piece.tensor];
    std::byte* const data = state.buffer(piece.buffer).data();
    const size_t size = size_of(tensor.dtype);
    for_each_element(piece, tensor, [&](uint64_t at, uint64_t value) {
      std::memcpy(data + at * size, &value, size);
    });
  }
}

// Nothing if every element is right, padding included; otherwise the first that is not.
std::string fault_of(const ShardedState& state) {
  std::string fault;
  std::vector<std::vector<bool>> seen;
  for (const auto& buffer : state.holding().buffers) seen.emplace_back(buffer.elements);
  for (const Piece& piece : state.holding().pieces) {
    const TensorInfo& tensor = state.layout().collection()[piece.tensor];
    const std::byte* const data = state.buffer(piece.buffer).data();
    const size_t size = size_of(tensor.dtype);
    for_each_element(piece, tensor, [&](uint64_t at, uint64_t value) {
      seen[piece.buffer][at] = true;
      if (fault.empty() && std::memcmp(data + at * size, &value, size) != 0)
        fault = fmt::format("{} {} at {}", tensor.name, to_string(piece.box), at);
    });
  }
  for (size_t b = 0; b < seen.size() && fault.empty(); ++b) {
    const auto& buffer = state.holding().buffers[b];
    const size_t size = size_of(buffer.dtype);
    if (buffer.fill != 0) continue;
    for (size_t i = 0; i < seen[b].size() && fault.empty(); ++i)
      for (size_t k = 0; k < size && !seen[b][i]; ++k)
        if (state.buffer(b)[i * size + k] != std::byte{})
          fault = fmt::format("padding of {} at {}", buffer.name, i);
  }
  return fault;
}

int fail(const std::string& what) {
  std::fprintf(stderr, "reshape_worker: %s\n", what.c_str());
  return 3;
}

Result<ShardedState> allocate_filled(pliant::Session& session, const Layout& layout) {
  auto state = ShardedState::allocate(session, layout);
  if (state) fill(*state);
  return state;
}

// ---- sequence -----------------------------------------------------------------------------------

int run_sequence(pliant::Session& session, const std::vector<Layout>& layouts,
                 std::optional<uint64_t> cap) {
  auto state = allocate_filled(session, layouts[0]);
  if (!state) return fail(state.error().message);
  uint64_t kept = 0, in_place = 0, inside = 0, messages = 0, peak = 0, told = 0;
  for (size_t i = 1; i < layouts.size(); ++i) {
    pliant::ReshapeOptions options;
    options.threads = static_cast<int>(i % 3);
    options.keeps_memory = i % 2 == 1;
    options.extra_bytes_max = cap;
    options.has_snapshot = cap.has_value();
    options.on_progress = [&](uint64_t done, uint64_t total) { told = done == total ? i : told; };
    auto report = reshape(session, *state, layouts[i], options);
    if (!report) return fail(fmt::format("step {}: {}", i, report.error().message));
    if (const std::string fault = fault_of(*state); !fault.empty())
      return fail(fmt::format("step {}: {} is wrong", i, fault));
    if (told != i) return fail(fmt::format("step {}: progress did not reach the end", i));
    kept += report->bytes_kept;
    in_place += report->bytes_in_place;
    inside += report->bytes_inside;
    messages += report->bytes_messages;
    peak = std::max(peak, report->peak_extra_bytes);
  }
  std::printf("%s\n", fmt::format(R"({{"rank": {}, "changes": {}, "kept": {}, "in_place": {}, )"
                                  R"("inside": {}, "messages": {}, "peak": {}}})",
                                  session.rank(), layouts.size() - 1, kept, in_place, inside,
                                  messages, peak)
                          .c_str());
  return 0;
}

// ---- memory -------------------------------------------------------------------------------------

// The memory that this process shares with its peers, as the kernel counts it.
class SharedPages {
 public:
  // Of all segments that are open here it is the one in which this address is.
  explicit SharedPages(const void* own) {
    std::ifstream maps("/proc/self/maps");
    uint64_t inode = 0;
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0, end = 0, number = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %lu", &begin, &end, &number) != 3)
        continue;
      const auto at = reinterpret_cast<uintptr_t>(own);
      if (at >= begin && at < end) inode = number;
    }
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      struct stat info {};
      const int fd = std::stoi(entry.path().filename());
      if (inode != 0 && fstat(fd, &info) == 0 && info.st_ino == inode) fd_ = fd;
    }
  }
  bool ok() const { return fd_ >= 0; }
  int64_t bytes() const {
    struct stat info {};
    return fstat(fd_, &info) == 0 ? int64_t{info.st_blocks} * 512 : -1;
  }

 private:
  int fd_ = -1;
};

// Of this process alone: plans, lists and stacks.
int64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  long long kilobytes = 0;
  for (std::string line; std::getline(status, line);)
    if (std::sscanf(line.c_str(), "RssAnon: %lld kB", &kilobytes) == 1) break;
  return int64_t{kilobytes} * 1024;
}

int run_memory(pliant::Session& session, const std::vector<Layout>& layouts,
               std::optional<uint64_t> percent) {
  const auto anchor = session.allocate(1);
  if (!anchor) return fail(anchor.error().message);
  const SharedPages pages(anchor->data());
  if (!pages.ok()) return fail("the shared memory is not among the open files");
  {
    // What the exchange itself needs stays, and is no part of the state.
    auto warm = allocate_filled(session, layouts[0]);
    if (!warm) return fail(warm.error().message);
    if (auto report = reshape(session, *warm, layouts.back()); !report)
      return fail(report.error().message);
  }
  const auto of_state = [&](const Layout& layout) {
    const int64_t before = pages.bytes();
    const auto state = allocate_filled(session, layout);
    return state ? pages.bytes() - before : 0;
  };
  std::vector<int64_t> at_rest;
  for (const Layout& layout : layouts) at_rest.push_back(of_state(layout));
  const int64_t others = pages.bytes();
  auto state = allocate_filled(session, layouts[0]);
  if (!state) return fail(state.error().message);
  int64_t worst = INT64_MIN, besides = 0, target = INT64_MAX;
  for (size_t i = 1; i < layouts.size(); ++i) {
    int64_t gets = INT64_MAX;  // the member that gets least
    for (Rank rank = 0; rank < session.size(); ++rank)
      gets = std::min(gets, static_cast<int64_t>(layouts[i].holding(rank).bytes()));
    target = std::min(target, gets);
    pliant::ReshapeOptions options{.threads = 1};
    if (percent) {
      options.extra_bytes_max = static_cast<uint64_t>(gets) * *percent / 100;
      options.has_snapshot = true;
    }
    // Called at the end of each batch, before the memory of its sources goes.
    int64_t peak = 0;
    const int64_t before = private_bytes();
    options.on_progress = [&](uint64_t, uint64_t) {
      peak = std::max(peak, pages.bytes());
      besides = std::max(besides, private_bytes() - before);
    };
    auto report = reshape(session, *state, layouts[i], options);
    if (!report) return fail(fmt::format("step {}: {}", i, report.error().message));
    if (const std::string fault = fault_of(*state); !fault.empty()) return fail(fault);
    worst = std::max(worst, peak - others - std::max(at_rest[i - 1], at_rest[i]));
  }
  std::printf("%s\n", fmt::format(R"({{"rank": {}, "target": {}, "extra": {}, "besides": {}}})",
                                  session.rank(), target, worst, besides)
                          .c_str());
  return 0;
}

// ---- faults -------------------------------------------------------------------------------------

struct FaultOptions {
  std::string folder;  // for records
  std::optional<uint64_t> cap;
  bool has_snapshot = false;
};

class Faults {
 public:
  Faults(pliant::Session& session, const FaultOptions& options, const std::vector<Layout>& layouts)
      : session_(session),
        options_(options),
        state_(session),
        file_(options.folder + "/" + std::to_string(getpid())) {
    for (const Layout& layout : layouts) layouts_[layout.mesh().size()].push_back(&layout);
  }

  int run() {
    while (pliant::Step step = session_.begin_step()) {
      if (step.begun_by_all())
        if (const std::string fault = attempt(step.number()); !fault.empty()) return fail(fault);
      if (!step.commit()) break;
    }
    const Status status = session_.status();
    return status.ok() ? 0 : fail(status.error().message);
  }

 private:
  void record(uint64_t step, const std::string& fields) {
    file_ << fmt::format(R"({{"step": {}, "epoch": {}, "members": {}, {}}})", step,
                         number(session_.view().epoch), session_.size(), fields)
          << std::endl;
  }

  // One change of layout; what was wrong with it, if anything was.
  std::string attempt(uint64_t step) {
    const auto found = layouts_.find(static_cast<uint32_t>(session_.size()));
    if (found == layouts_.end()) return fmt::format("no layout for {} members", session_.size());
    const Layout& layout = *found->second[step % found->second.size()];
    // A snapshot is restored by all or, if one dies meanwhile, again.
    uint8_t restores = restores_ || step == 1 ? 1 : 0;
    const Status agreed = session_.all_reduce("restore", &restores, &restores, 1,
                                              pliant::DType::kU8, pliant::Op::kMax);
    if (!agreed) return {};
    if (restores != 0) {
      state_ = ShardedState(session_);
      auto state = allocate_filled(session_, layout);
      if (!state) return state.error().message;
      state_ = std::move(*state);
      restores_ = !session_.barrier("restored").ok();
      record(step, R"("event": "restored")");
      return {};
    }
    std::vector<pliant::tensor::Gone> gone;
    pliant::ReshapeOptions options;
    options.gone = &gone;
    options.extra_bytes_max = options_.cap;
    options.has_snapshot = options_.has_snapshot;
    const bool had = !state_.empty();
    const bool was_split = state_.is_split();
    if (had && !was_split) places_ = {{state_.layout(), state_.peers()}};
    const pliant::Instant began = pliant::now();
    std::thread end = maybe_die(step);
    auto report = reshape(session_, state_, layout, options);
    if (end.joinable()) end.join();
    if (report) usual_ = pliant::now() - began;
    if (!state_.empty() && !state_.is_split())
      if (const std::string fault = fault_of(state_); !fault.empty())
        return fmt::format("step {}: {} is wrong after {}", step, fault,
                           report ? "a success" : report.error().message);
    if (report) {
      record(step, fmt::format(R"("event": "{}", "messages": {}, "moved": {})",
                               was_split ? "joined" : "reshaped", report->bytes_messages,
                               report->totals.bytes_moved));
      return {};
    }
    if (had && state_.empty()) return "the old state is gone after " + report.error().message;
    if (gone.empty()) {
      if (report.code() == Code::kInvalid) return report.error().message;
      const char* const event = !state_.is_split() ? "failed" : was_split ? "still split" : "split";
      record(step, fmt::format(R"("event": "{}", "code": "{}")", event, to_string(report.code())));
      // One who has just come does not know where all was before.
      if (!had) places_.clear();
      if (had && !places_.empty()) places_.push_back({layout, session_.world().members});
      return {};
    }
    restores_ = true;
    if (!is_exact(gone)) return "the report of what is gone is not exact";
    std::string pieces;
    for (const auto& piece : gone)
      pieces += fmt::format("{}\"{} {}\"", pieces.empty() ? "" : ", ",
                            layout.collection()[piece.tensor].name, to_string(piece.box));
    record(step, fmt::format(R"("event": "gone", "pieces": [{}])", pieces));
    return {};
  }

  // If it is this member's turn: it ends at some instant of the change that begins now.
  std::thread maybe_die(uint64_t step) {
    const uint64_t dice = value_of(number(session_.view().epoch), step);
    if (usual_ == pliant::Duration{} || !may_lose_one()) return {};
    if (static_cast<Rank>(dice % static_cast<uint64_t>(session_.size())) != session_.rank())
      return {};
    const auto after = usual_ * static_cast<int64_t>(dice / 64 % 1000) / 900;
    record(step, fmt::format(R"("event": "dying", "after": {})", pliant::seconds(after)));
    return std::thread([after] {
      std::this_thread::sleep_for(after);
      kill(getpid(), SIGKILL);
    });
  }

  // A layout in which tensors may be.
  struct Place {
    Layout layout;
    std::vector<pliant::PeerId> peers;
  };

  // Either all are there, or everything has a copy more than that: so that what is gone after a
  // death is what the one who died was the last to have.
  bool may_lose_one() const {
    const auto members = static_cast<uint32_t>(session_.size());
    if (places_.empty() || members <= layouts_.begin()->first) return false;
    return std::ranges::all_of(places_, [&](const Place& place) {
      const auto dead = static_cast<size_t>(std::ranges::count_if(
          place.peers, [&](pliant::PeerId peer) { return session_.view().rank_of(peer) < 0; }));
      const bool all_there = dead == 0 && members == layouts_.rbegin()->first;
      return all_there || !find_scarce(place.layout, dead + 2);
    });
  }

  // True if there is, for each tensor, a place in which every element is either named as gone or
  // with a survivor.
  bool is_exact(const std::vector<pliant::tensor::Gone>& gone) const {
    if (places_.empty()) return true;
    std::vector<bool> exact(places_[0].layout.collection().size());
    for (const Place& place : places_)
      for (size_t tensor = 0; tensor < exact.size(); ++tensor)
        if (!exact[tensor]) exact[tensor] = is_exact_in(place, tensor, gone);
    return std::ranges::count(exact, false) == 0;
  }

  bool is_exact_in(const Place& place, size_t tensor,
                   const std::vector<pliant::tensor::Gone>& gone) const {
    const TensorInfo& info = place.layout.collection()[tensor];
    const auto strides = pliant::tensor::strides_of(info.shape);
    const Piece all{.box = pliant::tensor::whole(info.shape), .strides = strides};
    std::vector<uint8_t> marks(info.elements());
    const auto mark = [&](const pliant::tensor::Box& box, uint8_t bit) {
      for_each_element({.box = box, .offset = all.offset_of(box), .strides = strides}, info,
                       [&](uint64_t at, uint64_t) { marks[at] |= bit; });
    };
    for (const auto& shard : place.layout.placement(tensor).shards)
      for (const Rank holder : shard.holders)
        if (session_.view().rank_of(place.peers[static_cast<size_t>(holder)]) >= 0)
          mark(shard.box, 1);
    for (const auto& piece : gone)
      if (piece.tensor == tensor) mark(piece.box, 2);
    return std::ranges::all_of(marks, [](uint8_t bits) { return bits == 1 || bits == 2; });
  }

  pliant::Session& session_;
  const FaultOptions options_;
  ShardedState state_;
  std::vector<Place> places_;
  pliant::Duration usual_{};  // of a change
  std::ofstream file_;
  std::map<uint32_t, std::vector<const Layout*>> layouts_;  // by number of ranks
  bool restores_ = false;
};

// ---- wrong --------------------------------------------------------------------------------------

// Each call must fail on all members with this in its message, and change nothing.
int run_wrong(pliant::Session& session) {
  const auto layout = [&](const std::string& text) { return *read_layout(text); };
  auto state = allocate_filled(session, layout("tp=4"));
  if (!state) return fail(state.error().message);
  ShardedState empty(session);
  const bool odd = session.rank() % 2 == 1;
  struct Case {
    const char* text;
    ShardedState* state;
    Layout to;
    std::vector<Rank> ranks;
  };
  const Case cases[] = {
      {"for 8 ranks, but the view has 4 members", &*state, layout("tp=8"), {}},
      {"wants another layout than", &*state, layout(odd ? "dp=2,tp=2" : "tp=2,pp=2"), {}},
      {"does not fit the members|for 2 ranks", &*state, layout(odd ? "tp=2" : "tp=4"), {}},
      {"member 4, but the view has 0 to 3", &*state, layout("tp=4"), {0, 1, 2, 4}},
      {"is to be two ranks", &*state, layout("tp=4"), {0, 1, 2, 2}},
      {"nobody has a state", &empty, layout("tp=4"), {}},
  };
  for (const Case& wrong : cases) {
    auto report = reshape(session, *wrong.state, wrong.to, {.ranks = wrong.ranks});
    if (report) return fail(fmt::format("no error with '{}'", wrong.text));
    std::printf("%s\n", report.error().message.c_str());
    const std::string texts = wrong.text;
    const size_t bar = texts.find('|');
    const std::string& said = report.error().message;
    if (said.find(texts.substr(0, bar)) == std::string::npos &&
        (bar == std::string::npos || said.find(texts.substr(bar + 1)) == std::string::npos))
      return fail(fmt::format("'{}' does not say '{}'", said, wrong.text));
    if (const std::string fault = fault_of(*state); !fault.empty()) return fail(fault);
  }
  if (auto report = reshape(session, *state, layout("dp=4"), {.extra_bytes_max = 1 << 20});
      report || report.error().message.find("no snapshot") == std::string::npos ||
      report.error().message.find("is on one member alone in the old layout") == std::string::npos)
    return fail("little memory without a snapshot: " +
                (report ? "not refused" : report.error().message));
  if (auto report = reshape(session, *state, layout("dp=4"),
                            {.extra_bytes_max = 1 << 10, .has_snapshot = true});
      report || report.error().message.find("allow at least") == std::string::npos)
    return fail("too little memory: " + (report ? "not refused" : report.error().message));
  if (const std::string fault = fault_of(*state); !fault.empty()) return fail(fault);
  // Two members hold everything and two nothing; then all again.
  for (const auto& [text, ranks] :
       {std::pair("tp=2", std::vector<Rank>{3, 1}), std::pair("tp=4", std::vector<Rank>{})}) {
    auto report = reshape(session, *state, layout(text), {.ranks = ranks});
    if (!report) return fail(report.error().message);
    if (const std::string fault = fault_of(*state); !fault.empty()) return fail(fault);
  }
  return 0;
}

// Takes an option and its value, if it has one, out of the words.
std::optional<std::string> take_option(std::vector<std::string>& words, const char* name,
                                       size_t values) {
  const auto found = std::ranges::find(words, name);
  if (static_cast<size_t>(words.end() - found) <= values) return std::nullopt;
  const std::string value = values == 0 ? "" : *(found + 1);
  words.erase(found, found + 1 + static_cast<ptrdiff_t>(values));
  return value;
}

std::optional<uint64_t> take_number(std::vector<std::string>& words, const char* name) {
  const auto text = take_option(words, name, 1);
  return text ? std::optional<uint64_t>(std::stoull(*text)) : std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return fail("which test?");
  auto opened = pliant::Session::open();
  if (!opened) return fail(opened.error().message);
  const std::string test = words[0];
  if (test == "wrong") return run_wrong(**opened);
  const auto cap = take_number(words, "--cap");
  const auto percent = take_number(words, "--percent");
  const bool has_snapshot = take_option(words, "--snapshot", 0).has_value();
  const size_t first = test == "faults" ? 2 : 1;
  std::vector<Layout> layouts;
  for (size_t i = first; i < words.size(); ++i) {
    auto layout = read_layout(words[i]);
    if (!layout) return fail(words[i] + ": " + layout.error().message);
    layouts.push_back(std::move(*layout));
  }
  if (layouts.empty()) return fail("which layouts?");
  if (test == "faults") return Faults(**opened, {words[1], cap, has_snapshot}, layouts).run();
  if (test == "memory") return run_memory(**opened, layouts, percent);
  return run_sequence(**opened, layouts, cap);
}
