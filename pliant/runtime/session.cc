#include "pliant/runtime/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "pliant/base/bytes.h"
#include "pliant/base/log.h"
#include "pliant/collective/cost.h"
#include "pliant/runtime/engine.h"
#include "pliant/runtime/link_probe.h"
#include "pliant/runtime/steps.h"

namespace pliant {

struct Work::State {
  std::atomic<bool> done = false;
  Status status;
  Engine* engine = nullptr;
};

// What decides how operations run; guarded by the loop once the session is open.
struct Session::Impl {
  SessionOptions options;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Steps> steps;
  std::unique_ptr<Snapshots> snapshots;
  Status step_status;
  Strategy strategy;
  CostModel model;
  uint64_t settings_version = 0;
  uint64_t links_measured = 0;
  struct Note {
    std::string name;
    std::function<std::vector<std::byte>()> pack;
    std::function<Status(std::span<const std::byte>)> adopt;
  };
  std::vector<Note> notes;

  std::vector<std::byte> settings();
  Status adopt_settings(Bytes bytes);
  std::vector<std::byte> pack_notes() const;
  Status adopt_notes(Bytes bytes);
  CostModel costs(const Signature& signature, const Group& group) const;
  CallPlan plan(const Signature& signature, const Group& group) const;
};

namespace {
int online_cores() { return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))); }
}  // namespace

// What the members of a group plan with; equal on all of them. The cores of a host are known to
// everybody there, however it came into the job; those of other hosts must have been agreed on.
CostModel Session::Impl::costs(const Signature& signature, const Group& group) const {
  CostModel known = model;
  if (signature.plain_plan) {
    known = {};
    known.shared_memory = model.shared_memory;
  }
  if (group.one_host()) known.cores = online_cores();
  return known;
}

CallPlan Session::Impl::plan(const Signature& signature, const Group& group) const {
  const CostModel known = costs(signature, group);
  // A strategy made for the world may not fit a smaller group; what fits best then decides.
  const bool set = !signature.plain_plan && strategy.kind != Strategy::Kind::kAuto &&
                   check_strategy(strategy, group).ok();
  return call_plan(signature, group, set ? strategy : choose(signature, group, known).strategy,
                   known);
}

namespace {
Snapshots::Options snapshot_options(const SessionOptions& options) {
  Snapshots::Options result;
  result.self = options.self;
  result.timeout = options.timeout;
  if (!options.store.empty())
    result.place = {options.store, options.job, options.token, options.self.host};
  return result;
}
}  // namespace

// ---- Life -------------------------------------------------------------------------------------

Result<std::unique_ptr<Session>> Session::open() {
  auto options = options_from_environment();
  if (!options) return options.error();
  return open(*options);
}

Result<std::unique_ptr<Session>> Session::open(const SessionOptions& options) {
  auto strategy = parse_strategy(options.strategy);
  if (!strategy) return strategy.error();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->strategy = *strategy;
  impl->model.shared_memory = options.transport != TransportChoice::kTcp;
  auto engine = Engine::open(options, [impl = impl.get()](const Signature& s, const Group& g) {
    return impl->plan(s, g);
  });
  if (!engine) return engine.error();
  impl->engine = std::move(*engine);
  std::unique_ptr<Session> session(new Session(std::move(impl)));
  const Group& world = session->world();
  Impl& mine = *session->impl_;
  mine.steps = std::make_unique<Steps>(
      *mine.engine, options.self,
      Steps::Options{.elastic = options.elastic,
                     .report_steps = options.report_steps,
                     .settings = [&mine] { return mine.settings(); },
                     .adopt_settings = [&mine](Bytes bytes) { return mine.adopt_settings(bytes); },
                     .settings_version = [&mine] { return mine.settings_version; },
                     .notes = [&mine] { return mine.pack_notes(); },
                     .adopt_notes = [&mine](Bytes bytes) { return mine.adopt_notes(bytes); }});
  mine.snapshots = std::make_unique<Snapshots>(snapshot_options(options));
  PLIANT_TRY(check_strategy(*strategy, world));
  if (strategy->kind == Strategy::Kind::kDirect && options.transport == TransportChoice::kTcp)
    return invalid("strategy direct needs shared memory, which transport tcp does without");
  // Between hosts the choice of a strategy rests on what the links can do. Every rank plans for
  // itself, so all must know the same: until the hosts have agreed, each counts as one core.
  // Members of an elastic job do not open at the same time: it measures when it is asked to.
  if (!world.one_host() && !options.elastic) PLIANT_TRY(session->measure_links());
  return session;
}

// What ranks need to plan alike.
std::vector<std::byte> Session::Impl::settings() {
  return engine->with_loop([&] {
    Writer writer;
    writer.put(settings_version);
    writer.put(links_measured);
    writer.put_string(to_string(strategy));
    const std::vector<std::byte> costs = encode(model);
    writer.put_string({reinterpret_cast<const char*>(costs.data()), costs.size()});
    return writer.bytes();
  });
}

Status Session::Impl::adopt_settings(Bytes bytes) {
  Reader reader(bytes);
  const auto version = reader.take<uint64_t>();
  const auto measured = reader.take<uint64_t>();
  auto theirs = parse_strategy(reader.take_string(1 << 20));
  const std::string costs = reader.take_string(bytes.size());
  auto costs_of_links = decode_cost_model(std::as_bytes(std::span(costs)));
  if (!reader.finished() || !theirs || !costs_of_links)
    return invalid("the settings of the job cannot be read; do all workers run the same version?");
  engine->with_loop([&] {
    strategy = *theirs;
    model = *costs_of_links;
    settings_version = version;
    links_measured = measured;
    engine->executor().forget_plans();
  });
  return {};
}

std::vector<std::byte> Session::Impl::pack_notes() const {
  Writer writer;
  writer.put(static_cast<uint32_t>(notes.size()));
  for (const Note& note : notes) {
    const std::vector<std::byte> bytes = note.pack();
    writer.put_string(note.name);
    writer.put_string({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return writer.bytes();
}

Status Session::Impl::adopt_notes(Bytes bytes) {
  Reader reader(bytes);
  const auto count = reader.take<uint32_t>();
  if (count != notes.size())
    return invalid(fmt::format("this worker cannot join: it registers {} notes, the others {}",
                               notes.size(), count));
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name = reader.take_string(256);
    const std::string text = reader.take_string(reader.left());
    const auto mine = std::find_if(notes.begin(), notes.end(),
                                   [&](const Note& note) { return note.name == name; });
    if (mine == notes.end())
      return invalid(fmt::format("this worker cannot join: it lacks the note '{}'", name));
    PLIANT_TRY(mine->adopt(std::as_bytes(std::span(text))));
  }
  if (!reader.finished()) return invalid("the notes of the job cannot be read");
  return {};
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

Rank Session::rank() const { return world().self; }
Rank Session::size() const { return world().size(); }
Rank Session::local_size() const { return static_cast<Rank>(world().local.size()); }
Rank Session::local_rank() const {
  const auto& local = world().local;
  return static_cast<Rank>(std::find(local.begin(), local.end(), rank()) - local.begin());
}
int Session::host_count() const { return world().hosts; }
const View& Session::view() const { return impl_->engine->view(); }
const Group& Session::world() const { return impl_->engine->world(); }

Result<std::span<std::byte>> Session::allocate(size_t bytes) {
  return impl_->engine->segment().allocate(bytes);
}

Status Session::share(std::span<std::byte> memory) {
  return impl_->engine->segment().adopt(memory.data(), memory.size());
}

bool Session::is_registered(const void* memory, size_t bytes) const {
  return impl_->engine->segment().contains(memory, bytes);
}

Status Session::unshare(std::byte* memory) { return impl_->engine->segment().surrender(memory); }

void Session::release(std::span<std::byte> memory) {
  impl_->engine->segment().release(memory.data());
}

void Session::discard(std::span<std::byte> part) { impl_->engine->segment().discard(part); }

std::optional<uint64_t> Session::place_of(std::span<const std::byte> memory) const {
  Segment& segment = impl_->engine->segment();
  if (impl_->options.transport == TransportChoice::kTcp) return std::nullopt;
  if (!segment.contains(memory.data(), memory.size())) return std::nullopt;
  return segment.offset_of(memory.data());
}

const std::byte* Session::peer_memory(Rank peer, uint64_t place, size_t bytes) {
  if (peer < 0 || peer >= size()) return nullptr;
  Engine& engine = *impl_->engine;
  const auto at = [&](Segment& segment) -> const std::byte* {
    if (place > segment.size() || bytes > segment.size() - place) return nullptr;
    return segment.contains(segment.at(place), bytes) ? segment.at(place) : nullptr;
  };
  if (peer == rank()) return at(engine.segment());
  return engine.read_segment(world().peer(peer), at);
}

Result<Group> Session::group(std::span<const Rank> ranks) {
  std::vector<PeerId> members;
  bool includes_self = false;
  for (const Rank rank : ranks) {
    if (rank < 0 || rank >= size())
      return invalid(fmt::format("there is no rank {} among {}", rank, size()));
    const PeerId peer = world().peer(rank);
    if (std::find(members.begin(), members.end(), peer) != members.end())
      return invalid(fmt::format("rank {} stands in the group twice", rank));
    includes_self |= rank == this->rank();
    members.push_back(peer);
  }
  if (!includes_self)
    return invalid(fmt::format("rank {} makes a group that it does not belong to", this->rank()));
  return make_group(members, world().peer(rank()), view().epoch);
}

// ---- Operations -------------------------------------------------------------------------------

Status Session::run(const Operation& operation) { return run(operation, world()); }

Status Session::run(const Operation& operation, const Group& group) {
  return impl_->engine->run(operation, group);
}

Work Session::start(const Operation& operation) { return start(operation, world()); }

Work Session::start(const Operation& operation, const Group& group) {
  Work work;
  work.state_ = std::make_shared<Work::State>();
  work.state_->engine = impl_->engine.get();
  impl_->engine->start(operation, group,
                       [state = work.state_](const Status& status, const std::byte*) {
                         if (!status.ok()) state->status = status.error();
                         state->done.store(true, std::memory_order_release);
                         state->done.notify_all();
                       });
  return work;
}

uint64_t Session::await_works(uint64_t known, Duration longest) {
  return impl_->engine->await_ended(known, longest);
}

bool Work::done() const {
  return state_ == nullptr || state_->done.load(std::memory_order_acquire);
}

Status Work::wait() {
  if (state_ == nullptr) return {};
  // The session ends only after all its operations have: a done one does not need it.
  if (!done()) state_->engine->wait(state_->done);
  if (state_->status.ok()) return {};
  return state_->status.error();
}

Status Session::all_reduce(std::string_view name, const void* input, void* output, size_t count,
                           DType dtype, Op op) {
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.name = name;
  operation.input = input;
  operation.output = output;
  operation.count = count;
  operation.dtype = dtype;
  operation.op = op;
  return run(operation);
}

Status Session::broadcast(std::string_view name, void* buffer, size_t count, DType dtype,
                          Rank root) {
  Operation operation;
  operation.collective = Collective::kBroadcast;
  operation.name = name;
  operation.input = buffer;
  operation.output = buffer;
  operation.count = count;
  operation.dtype = dtype;
  operation.root = root;
  return run(operation);
}

Status Session::all_gather(std::string_view name, const void* input, void* output, size_t count,
                           DType dtype) {
  Operation operation;
  operation.collective = Collective::kAllGather;
  operation.name = name;
  operation.input = input;
  operation.output = output;
  operation.count = count;
  operation.dtype = dtype;
  return run(operation);
}

Status Session::barrier(std::string_view name) {
  Operation operation;
  operation.collective = Collective::kBarrier;
  operation.name = name;
  return run(operation);
}

Result<std::span<const std::byte>> Session::all_reduce_shared(std::string_view name,
                                                              const void* input, size_t count,
                                                              DType dtype, Op op) {
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.name = name;
  operation.input = input;
  operation.count = count;
  operation.dtype = dtype;
  operation.op = op;
  operation.shared_result = true;
  const std::byte* result = nullptr;
  PLIANT_TRY(impl_->engine->run(operation, world(), &result));
  return std::span(result, count * size_of(dtype));
}

Result<bool> Session::consensus(std::string_view name, std::span<const std::byte> bytes) {
  const std::string base = std::string(name) + "/consensus";
  // The complement turns a minimum into a maximum: all are equal if the two agree.
  const uint64_t digest = hash64(bytes);
  uint64_t seen[4] = {digest, ~digest, bytes.size(), ~uint64_t{bytes.size()}};
  PLIANT_TRY(all_reduce(base, seen, seen, 4, DType::kU64, Op::kMax));
  if (seen[0] != ~seen[1] || seen[2] != ~seen[3]) return false;
  // Equal digests are not proof.
  std::vector<std::byte> first(bytes.begin(), bytes.end());
  PLIANT_TRY(broadcast(base, first.data(), first.size(), DType::kU8, 0));
  uint8_t same = std::equal(first.begin(), first.end(), bytes.begin(), bytes.end()) ? 1 : 0;
  PLIANT_TRY(all_reduce(base, &same, &same, 1, DType::kU8, Op::kMin));
  return same == 1;
}

// ---- Strategy ---------------------------------------------------------------------------------

Status Session::set_strategy(std::string_view text) {
  auto strategy = parse_strategy(text);
  Status valid;
  if (!strategy) {
    valid = strategy.error();
  } else if (valid = check_strategy(*strategy, world()); valid.ok()) {
    const bool busy = impl_->engine->with_loop([&] { return !impl_->engine->executor().idle(); });
    if (busy) valid = invalid("set_strategy: wait for the operations in flight first");
    if (strategy->kind == Strategy::Kind::kDirect && !impl_->model.shared_memory)
      valid = invalid("strategy direct needs shared memory, which transport tcp does without");
  }
  // Everybody takes part, also who knows already that it must fail.
  const std::string said =
      valid.ok() ? to_string(*strategy) : fmt::format("? rank {} cannot", rank());
  auto agreed = consensus("pliant/strategy", std::as_bytes(std::span(said)));
  if (!valid.ok()) return valid;
  if (!agreed) return agreed.error();
  if (!*agreed)
    return invalid(
        fmt::format("set_strategy: the ranks do not agree on '{}'; the strategy stays "
                    "'{}'",
                    text, this->strategy()));
  impl_->engine->with_loop([&] {
    impl_->strategy = *strategy;
    ++impl_->settings_version;
    impl_->engine->executor().forget_plans();
  });
  return {};
}

std::string Session::strategy() const {
  return impl_->engine->with_loop([&] { return to_string(impl_->strategy); });
}

Status Session::measure_links() {
  auto between = probe_links(*this);
  if (!between) return between.error();
  int32_t cores = online_cores();
  PLIANT_TRY(all_reduce("pliant/probe/cores", &cores, &cores, 1, DType::kI32, Op::kMin));
  impl_->engine->with_loop([&] {
    impl_->model.cores = cores;
    impl_->model.between = std::move(*between);
    ++impl_->settings_version;
    ++impl_->links_measured;
    impl_->engine->executor().forget_plans();
  });
  return {};
}

std::vector<LinkSignals> Session::links() const {
  return impl_->engine->with_loop([&] {
    std::vector<LinkSignals> all;
    for (const auto& [hosts, cost] : impl_->model.between)
      all.push_back({hosts.first, hosts.second, cost.latency_s, cost.bytes_per_s});
    return all;
  });
}

uint64_t Session::links_measured() const {
  return impl_->engine->with_loop([&] { return impl_->links_measured; });
}

std::string Session::explain(Collective collective, size_t bytes) {
  Signature signature;
  signature.collective = collective;
  signature.dtype = DType::kU8;
  signature.count = bytes;
  return impl_->engine->with_loop([&]() -> std::string {
    if (size() == 1) return "alone: nothing to exchange";
    if (impl_->strategy.kind == Strategy::Kind::kAuto)
      return choose(signature, world(), impl_->costs(signature, world())).reason;
    const CallPlan plan = impl_->plan(signature, world());
    const double predicted = predict(signature, world(), plan.strategy, plan.chunk_bytes,
                                     impl_->costs(signature, world()));
    return fmt::format("{}: as set, {} over {} ranks, predicted {}", to_string(plan.strategy),
                       human_bytes(bytes), size(), human_duration(from_seconds(predicted)));
  });
}

// ---- Snapshots --------------------------------------------------------------------------------

Result<Snapshot> Session::snapshot(uint64_t step, std::span<const SnapshotPiece> pieces) {
  return impl_->snapshots->take({.step = step,
                                 .epoch = static_cast<uint32_t>(view().epoch),
                                 .writer = static_cast<uint32_t>(local_rank()),
                                 .writers = static_cast<uint32_t>(local_size())},
                                pieces);
}

Result<Snapshot> Session::snapshot(uint64_t step) {
  const auto members = static_cast<uint64_t>(local_size());
  const auto self = static_cast<uint64_t>(local_rank());
  std::vector<SnapshotPiece> pieces;
  for (const Steps::Registered& state : impl_->steps->registered()) {
    const uint64_t size = size_of(state.dtype);
    const uint64_t count = state.memory.size() / size;
    // Without the product of the two, which may not fit.
    uint64_t begin = count / members * self + std::min(self, count % members);
    uint64_t end = begin + count / members + (self < count % members ? 1 : 0);
    // Parts of different copies would be nobody's.
    if (state.kind == StateKind::kOwn) begin = self == 0 ? 0 : count, end = count;
    SnapshotPiece& piece = pieces.emplace_back();
    piece.tensor = {std::string(state.name), state.dtype, {count}};
    piece.box.dims = 1;
    piece.box.begin[0] = begin;
    piece.box.end[0] = end;
    piece.elements = Bytes(state.memory).subspan(begin * size, (end - begin) * size);
  }
  if (pieces.empty()) return invalid("snapshot: nothing is registered; call register_state first");
  return snapshot(step, pieces);
}

Result<store::Version::Shared> Session::restore(uint64_t step) {
  return impl_->snapshots->restore(step);
}

Result<store::Version::Shared> Session::gather(uint64_t step, std::span<const StoreRange> wanted) {
  return impl_->snapshots->gather(step, wanted);
}

Result<uint64_t> Session::restore_state(uint64_t step) {
  const std::vector<Steps::Registered> states = impl_->steps->registered();
  std::vector<StoreRange> wanted;
  for (const Steps::Registered& state : states) wanted.push_back({std::string(state.name), {}});
  const auto version = wanted.empty() ? restore(step) : gather(step, wanted);
  if (!version) return version.error();
  std::vector<size_t> numbers;
  for (const Steps::Registered& state : states) {
    const auto number = (*version)->find(state.name);
    if (!number) return number.error();
    const tensor::TensorInfo& info = (*version)->tensors()[*number];
    if (info.dtype != state.dtype || info.bytes() != state.memory.size())
      return invalid(fmt::format("restore: '{}' is {} with {} bytes here, and {} in step {}",
                                 state.name, to_string(state.dtype), state.memory.size(),
                                 to_string(info), (*version)->step()));
    const auto covered = (*version)->covered(*number);
    if (!covered) return covered.error();
    if (*covered != info.elements())
      return invalid(fmt::format("restore: step {} has {} of {} elements of '{}'",
                                 (*version)->step(), *covered, info.elements(), state.name));
    numbers.push_back(*number);
  }
  for (size_t i = 0; i < states.size(); ++i)
    PLIANT_TRY((*version)->read(numbers[i], tensor::whole((*version)->tensors()[numbers[i]].shape),
                                states[i].memory));
  return (*version)->step();
}

// ---- Steps ------------------------------------------------------------------------------------

const char* to_string(StateKind kind) { return kind == StateKind::kOwn ? "own" : "equal"; }

Status Session::register_state(std::string_view name, std::span<std::byte> memory, DType dtype,
                               StateKind kind) {
  return impl_->steps->register_state(name, memory, dtype, kind);
}

Status Session::register_note(std::string_view name, std::function<std::vector<std::byte>()> pack,
                              std::function<Status(std::span<const std::byte>)> adopt) {
  if (name.empty() || name.size() > 200)
    return invalid("the name of a note has 1 to 200 characters");
  for (const Impl::Note& note : impl_->notes)
    if (note.name == name) return invalid(fmt::format("note '{}' is registered twice", name));
  impl_->notes.push_back({std::string(name), std::move(pack), std::move(adopt)});
  return {};
}

bool Session::has_sampler() const { return impl_->steps->has_sampler(); }

Status Session::use_sampler(const SamplerOptions& options) {
  return impl_->steps->use_sampler(options);
}

Status Session::set_global_batch(uint64_t samples) {
  return impl_->steps->set_global_batch(samples);
}

DataPosition Session::data_position() const { return impl_->steps->data_position(); }

UpcomingSamples Session::upcoming_samples(size_t steps_ahead) const {
  return impl_->steps->upcoming_samples(steps_ahead);
}

Step Session::begin_step() {
  auto begun = impl_->steps->begin();
  if (!begun) {
    impl_->step_status = begun.error();
    return Step(nullptr);
  }
  return Step(*begun ? impl_->steps.get() : nullptr);
}

void Session::finish_steps() { impl_->steps->finish(); }

Status Session::status() const {
  if (impl_->step_status.ok()) return {};
  return impl_->step_status.error();
}

Status Session::propose_size(int members) {
  if (!impl_->options.elastic)
    return invalid("propose_size: the job is not elastic; start it with pliant run --min or --max");
  if (members < 1) return invalid(fmt::format("propose_size: {} is no number of members", members));
  impl_->engine->tell(Proposal{static_cast<uint32_t>(members)});
  return {};
}

const StepTimes& Session::last_change() const { return impl_->steps->last_change(); }
const std::vector<PeerId>& Session::losses() const { return impl_->steps->losses(); }
bool Session::elastic() const { return impl_->options.elastic; }
SizeLimits Session::size_limits() const {
  return {impl_->options.members_min, impl_->options.members_max};
}

uint64_t Step::number() const { return steps_->step_number(); }
bool Step::begun_by_all() const { return steps_->begun_by_all(); }
const std::vector<PeerId>& Step::begun_by() const { return steps_->begun_by(); }
uint32_t Step::begun_in() const { return steps_->begun_in(); }
uint64_t Step::handed_in_bytes() const { return steps_->handed_in_bytes(); }
std::span<const uint64_t> Step::samples() const { return steps_->samples(); }
uint64_t Step::batch() const { return steps_->step_batch(); }
Status Step::all_reduce(std::string_view name, const void* input, size_t count, DType dtype, Op op,
                        void* output) {
  return steps_->all_reduce(name, input, output, count, dtype, op);
}
void Step::start() { steps_->start(); }
Status Step::commit() { return steps_->commit(); }
bool Step::more() const { return steps_->more(); }
Result<std::span<const std::byte>> Step::result(std::string_view name) const {
  return steps_->result(name);
}
int Step::contributors() const { return steps_->contributors(); }
uint64_t Step::contributed_samples() const { return steps_->contributed_samples(); }

std::vector<uint64_t> Step::committed_samples() const { return steps_->committed_samples(); }

// ---- Store ------------------------------------------------------------------------------------

Status Session::save(std::string_view name, uint64_t version, std::span<const std::byte> value) {
  const Bytes whole[] = {value};
  return impl_->engine->save(name, version, whole, impl_->options.store_window);
}

Status Session::save_parts(std::string_view name, uint64_t version, std::span<const Bytes> parts,
                           int window) {
  return impl_->engine->save(name, version, parts, window);
}

Result<std::vector<std::byte>> Session::request(Rank peer, std::string_view name,
                                                uint64_t version) {
  auto value = start_request(peer, name, version).wait();
  if (!value) return value.error();
  return std::move(value->bytes);
}

Request Session::start_request(Rank peer, std::string_view name, uint64_t version) {
  if (peer < 0 || peer >= size())
    return Request(
        answered_request(invalid(fmt::format("there is no rank {} among {}", peer, size()))));
  return Request(impl_->engine->request(world().peer(peer), name, version));
}

Request::Request(std::shared_ptr<ValueRequest> request) : request_(std::move(request)) {}

bool Request::done() const {
  return request_ == nullptr || request_->done.load(std::memory_order_acquire);
}

Result<StoredValue> Request::wait() {
  const std::shared_ptr<ValueRequest> request = std::exchange(request_, nullptr);
  if (request == nullptr) return invalid("the value of this request was taken before");
  // The session ends only after all its requests have: a done one does not need it.
  if (!request->done.load(std::memory_order_acquire)) request->engine->wait(request->done);
  return std::move(*request->value);
}

}  // namespace pliant
