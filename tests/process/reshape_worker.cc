// A worker for the tests of reshape(): fills a sharded state with values that tell where each
// element belongs, changes its layout again and again, and looks at every element each time.
//   reshape_worker sequence [--cap BYTES] LAYOUT...  one after the other, then a line of JSON
//   reshape_worker faults RECORDS LAYOUT...     until it is told to end; whenever all are there,
//   one
//                                               dies in the middle of a change
//   reshape_worker wrong                        calls that must fail, and a state that must stay
// LAYOUT is "dp=2,tp=2" of a small model, or the path of a layout with tensors; in `faults` each
// number of members uses those that are for as many. A line of JSON for each event goes to a file
// with the pid as its name in the folder RECORDS.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/runtime/reshape.h"
#include "pliant/runtime/session.h"
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

// ---- faults -------------------------------------------------------------------------------------

class Faults {
 public:
  Faults(pliant::Session& session, const std::string& folder, const std::vector<Layout>& layouts)
      : session_(session), state_(session), file_(folder + "/" + std::to_string(getpid())) {
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
    const bool had = !state_.empty();
    const pliant::Instant began = pliant::now();
    std::thread end = maybe_die(step);
    auto report = reshape(session_, state_, layout, options);
    if (end.joinable()) end.join();
    if (report) usual_ = pliant::now() - began;
    if (!state_.empty())
      if (const std::string fault = fault_of(state_); !fault.empty())
        return fmt::format("step {}: {} is wrong after {}", step, fault,
                           report ? "a success" : report.error().message);
    if (report) {
      record(step, fmt::format(R"("event": "reshaped", "messages": {}, "moved": {})",
                               report->bytes_messages, report->totals.bytes_moved));
      return {};
    }
    if (had && state_.empty()) return "the old state is gone after " + report.error().message;
    if (gone.empty()) {
      if (report.code() == Code::kInvalid) return report.error().message;
      record(step, fmt::format(R"("event": "failed", "code": "{}")", to_string(report.code())));
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
    const bool all_there = static_cast<uint32_t>(session_.size()) == layouts_.rbegin()->first;
    const uint64_t dice = value_of(number(session_.view().epoch), step);
    if (!all_there || state_.empty() || usual_ == pliant::Duration{}) return {};
    // One at a time: what another has taken with it must be there again.
    for (const pliant::PeerId peer : state_.peers())
      if (session_.view().rank_of(peer) < 0) return {};
    if (static_cast<Rank>(dice % static_cast<uint64_t>(session_.size())) != session_.rank())
      return {};
    const auto after = usual_ * static_cast<int64_t>(dice / 64 % 1000) / 900;
    record(step, fmt::format(R"("event": "dying", "after": {})", pliant::seconds(after)));
    return std::thread([after] {
      std::this_thread::sleep_for(after);
      kill(getpid(), SIGKILL);
    });
  }

  // True if every element of the old state is either named as gone or with a survivor.
  bool is_exact(const std::vector<pliant::tensor::Gone>& gone) const {
    if (state_.empty()) return true;
    const Layout& layout = state_.layout();
    std::vector<std::vector<uint8_t>> places;
    for (const TensorInfo& tensor : layout.collection().tensors())
      places.emplace_back(tensor.elements());
    const auto mark = [&](size_t tensor, const pliant::tensor::Box& box, uint8_t bit) {
      const TensorInfo& info = layout.collection()[tensor];
      const Piece all{.tensor = tensor,
                      .box = box,
                      .offset = 0,
                      .strides = pliant::tensor::strides_of(info.shape)};
      const uint64_t begin =
          Piece{.box = pliant::tensor::whole(info.shape), .strides = all.strides}.offset_of(box);
      for_each_element(all, info,
                       [&](uint64_t at, uint64_t) { places[tensor][begin + at] |= bit; });
    };
    for (size_t rank = 0; rank < state_.peers().size(); ++rank) {
      if (session_.view().rank_of(state_.peers()[rank]) < 0) continue;
      for (const Piece& piece : layout.holding(static_cast<Rank>(rank)).pieces)
        mark(piece.tensor, piece.box, 1);
    }
    for (const auto& piece : gone) mark(piece.tensor, piece.box, 2);
    for (const auto& tensor : places)
      for (const uint8_t place : tensor)
        if (place != 1 && place != 2) return false;
    return true;
  }

  pliant::Session& session_;
  ShardedState state_;
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
      report || report.error().message.find("no snapshot") == std::string::npos)
    return fail("little memory without a snapshot is not refused");
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

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return fail("which test?");
  auto opened = pliant::Session::open();
  if (!opened) return fail(opened.error().message);
  const bool faults = words[0] == "faults";
  if (words[0] == "wrong") return run_wrong(**opened);
  std::vector<Layout> layouts;
  const bool capped = words.size() > 2 && words[1] == "--cap";
  for (size_t i = capped ? 3 : faults ? 2 : 1; i < words.size(); ++i) {
    auto layout = read_layout(words[i]);
    if (!layout) return fail(words[i] + ": " + layout.error().message);
    layouts.push_back(std::move(*layout));
  }
  if (layouts.empty()) return fail("which layouts?");
  if (faults) return Faults(**opened, words[1], layouts).run();
  return run_sequence(**opened, layouts,
                      capped ? std::optional(std::stoull(words[2])) : std::nullopt);
}
