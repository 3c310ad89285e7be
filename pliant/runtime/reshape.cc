#include "pliant/runtime/reshape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "pliant/base/bytes.h"
#include "pliant/runtime/reshape_call.h"
#include "pliant/tensor/copies.h"
#include "pliant/tensor/layout_json.h"

namespace pliant {

using tensor::Layout;

namespace {

constexpr size_t kDescriptionBytesMax = size_t{1} << 30;
constexpr size_t kGoneNamedMax = 20;

// The same layout on the hosts on which its ranks really are.
Result<Layout> placed_on(const Layout& layout, const std::vector<uint32_t>& hosts) {
  if (layout.mesh().hosts() == hosts) return layout;
  tensor::LayoutSpec spec = layout.spec();
  auto mesh = tensor::Mesh::make_on(spec.mesh.axes(), hosts);
  if (!mesh) return mesh.error();
  spec.mesh = std::move(*mesh);
  return Layout::make(std::move(spec), layout.shared_collection());
}

uint32_t number_of(PeerId peer, std::map<uint32_t, uint32_t>& hosts) {
  return hosts.try_emplace(peer.host, static_cast<uint32_t>(hosts.size())).first->second;
}

// Of plans that are carried out one after the other.
void add_totals(const tensor::PlanTotals& plan, tensor::PlanTotals& sum) {
  sum.bytes_total += plan.bytes_total;
  sum.bytes_in_place += plan.bytes_in_place;
  sum.bytes_moved += plan.bytes_moved;
  sum.bytes_inside += plan.bytes_inside;
  sum.bytes_network += plan.bytes_network;
  sum.bytes_lower_bound += plan.bytes_lower_bound;
  sum.bytes_received_max += plan.bytes_received_max;
  sum.bytes_sent_max += plan.bytes_sent_max;
  sum.predicted_s += plan.predicted_s;
}

}  // namespace

ReshapeVerdict verdict_of(const Status& status) {
  ReshapeVerdict verdict;
  if (status.ok()) return verdict;
  verdict.failed = 1;
  verdict.code = static_cast<uint64_t>(status.code());
  const std::string& message = status.error().message;
  std::memcpy(verdict.text, message.data(), std::min(message.size(), sizeof verdict.text - 1));
  return verdict;
}

Result<std::vector<ReshapeVerdict>> Reshape::exchange(const char* name,
                                                      const ReshapeVerdict& mine) {
  std::vector<ReshapeVerdict> all(static_cast<size_t>(session_.size()));
  PLIANT_TRY(session_.all_gather(name, &mine, all.data(), sizeof mine, DType::kU8));
  return all;
}

// The error of the first member that has failed; the same on all.
Status Reshape::judge(std::vector<ReshapeVerdict>& all) const {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed == 0) continue;
    all[rank].text[sizeof all[rank].text - 1] = 0;
    const auto failed = static_cast<Rank>(rank);
    return Error{static_cast<Code>(all[rank].code),
                 fmt::format("reshape failed at {}: {}", describe(failed), all[rank].text),
                 session_.world().peer(failed), session_.view().epoch};
  }
  return {};
}

// ---- Agreeing on what is to be done -------------------------------------------------------------

Status Reshape::open() {
  auto seats = ShardedState::seats(session_, to_.mesh(), options_.ranks);
  ReshapeOpening mine{.generation = state_.generation_, .passed = state_.passed_};
  mine.holds_anything = state_.holds_anything() ? 1 : 0;
  if (!state_.empty()) mine.digest = state_.parts_.back().digest;
  if (state_.next_) {
    mine.own = state_.next_->own;
    mine.known = state_.next_->known;
    mine.next_digest = state_.next_->part.digest;
  }
  if (seats) {
    seats_ = std::move(*seats);
    part_ = ShardedState::make_part(session_, to_, seats_);
    const uint64_t asked[] = {options_.extra_bytes_max.value_or(UINT64_MAX),
                              uint64_t{options_.has_snapshot}};
    mine.to_digest = std::max<uint64_t>(1, hash64(std::as_bytes(std::span(asked)), part_->digest));
  }
  openings_.resize(static_cast<size_t>(session_.size()));
  PLIANT_TRY(
      session_.all_gather("pliant/reshape/open", &mine, openings_.data(), sizeof mine, DType::kU8));
  ground_ = ground_of(openings_);
  settle();
  if (!seats) return seats.error();
  return check();
}

ReshapeGround ground_of(std::span<const ReshapeOpening> openings) {
  ReshapeGround ground;
  for (const ReshapeOpening& opening : openings)
    if (opening.generation > ground.generation) ground = {opening.generation, opening.passed};
  uint64_t known = 0;
  for (const ReshapeOpening& opening : openings)
    if (opening.generation == ground.generation) known = std::max(known, opening.known);
  if (known > 0) ground = {ground.generation + 1, known};
  return ground;
}

// A change of layout that some members could not see through to its end.
void Reshape::settle() {
  const ReshapeOpening& mine = opening_of(session_.rank());
  if (mine.is_at(ground_)) {
    state_.next_.reset();
  } else if (mine.can_advance_to(ground_)) {
    state_.retire(state_.take_next(static_cast<uint32_t>(ground_.passed)), false);
  }
}

Status Reshape::check() const {
  if (ground_.generation == 0)
    return invalid("nobody has a state to reshape: allocate one, or restore one from a snapshot");
  std::optional<Rank> first;  // that has the state
  for (Rank rank = 0; rank < session_.size(); ++rank) {
    const ReshapeOpening& opening = opening_of(rank);
    if (opening.magic != kReshapeMagic)
      return invalid(fmt::format("{} runs another version of this program", describe(rank)));
    if (opening.to_digest == 0)
      return invalid(
          fmt::format("{} was asked for a layout that does not fit the members; its own "
                      "error says why",
                      describe(rank)));
    if (opening.to_digest != openings_[0].to_digest)
      return invalid(
          fmt::format("{} wants another layout than {}, or says otherwise what memory and snapshot "
                      "there is: all members must ask for the same",
                      describe(rank), describe(0)));
    if (opening.is_newcomer(ground_)) continue;
    if (!opening.has(ground_))
      return invalid(
          fmt::format("{} has a state of generation {}, others one of {}: it has missed "
                      "a change of layout; let it join with an empty state",
                      describe(rank), opening.generation, ground_.generation));
    if (!first) first = rank;
    if (opening.digest_of(ground_) != opening_of(*first).digest_of(ground_))
      return invalid(fmt::format("the states of {} and {} have different layouts", describe(rank),
                                 describe(*first)));
  }
  return {};
}

// Members that have just come do not know where tensors are.
Status Reshape::learn_layouts() {
  Rank root = -1;
  bool has_newcomers = false;
  for (Rank rank = session_.size(); rank-- > 0;) {
    if (opening_of(rank).has(ground_)) root = rank;
    has_newcomers = has_newcomers || !opening_of(rank).has(ground_);
  }
  if (!has_newcomers) return {};
  std::vector<std::byte> bytes;
  if (session_.rank() == root) bytes = description();
  uint64_t size = bytes.size();
  PLIANT_TRY(session_.broadcast("pliant/reshape/size", &size, 1, DType::kU64, root));
  if (size > kDescriptionBytesMax) return invalid("the description of the old layout is too large");
  bytes.resize(size);
  PLIANT_TRY(session_.broadcast("pliant/reshape/layout", bytes.data(), size, DType::kU8, root));
  Status taken;
  if (!opening_of(session_.rank()).has(ground_)) taken = take_description(bytes);
  auto verdicts = exchange("pliant/reshape/learned", verdict_of(taken));
  if (!verdicts) return verdicts.error();
  return judge(*verdicts);
}

std::vector<std::byte> Reshape::description() const {
  Writer writer;
  writer.put(static_cast<uint64_t>(state_.parts_.size()));
  for (const Part& part : state_.parts_) {
    const Layout& layout = part.layout;
    writer.put_string(tensor::to_json({.spec = layout.spec(), .collection = layout.collection()}));
    for (const PeerId peer : part.peers) writer.put(peer.packed());
    for (size_t i = 0; i < layout.collection().size(); ++i)
      writer.put(static_cast<uint8_t>(part.has(i)));
    writer.put(part.digest);
  }
  return writer.bytes();
}

// The parts of a member that holds nothing in them.
Status Reshape::take_description(Bytes bytes) {
  Reader reader(bytes);
  std::vector<Part> parts;
  const auto count = reader.take<uint64_t>();
  for (uint64_t i = 0; i < count && reader.ok(); ++i) {
    auto document = tensor::parse_layout(reader.take_string(bytes.size()));
    if (!document) return document.error();
    if (!document->collection) break;
    auto layout =
        Layout::make(std::move(document->spec),
                     std::make_shared<const tensor::Collection>(std::move(*document->collection)));
    if (!layout) return layout.error();
    Part part{.layout = std::move(*layout)};
    for (uint32_t rank = 0; rank < part.layout.mesh().size(); ++rank)
      part.peers.push_back(PeerId::unpack(reader.take<uint64_t>()));
    for (size_t tensor = 0; tensor < part.layout.collection().size(); ++tensor)
      part.tensors.push_back(reader.take<uint8_t>() != 0);
    part.digest = reader.take<uint64_t>();
    if (std::ranges::count(part.tensors, false) == 0) part.tensors.clear();
    parts.push_back(std::move(part));
  }
  if (!reader.finished() || parts.empty())
    return invalid("the description of the old layout is damaged");
  is_newcomer_ = true;
  state_.next_.reset();
  state_.parts_ = std::move(parts);
  state_.generation_ = ground_.generation;
  state_.passed_ = static_cast<uint32_t>(ground_.passed);
  return {};
}

// Takes back what has come to nothing: a batch that this member alone may have stays, because
// others may know that all have it.
void Reshape::undo() {
  if (state_.next_ && state_.next_->own == 0) state_.next_.reset();
  if (!is_newcomer_ || state_.next_) return;
  state_.parts_.clear();
  state_.generation_ = 0;
  state_.passed_ = 0;
}

// ---- Planning -----------------------------------------------------------------------------------

Status Reshape::make_plans() {
  HostNumbers hosts;
  for (const Part& part : state_.parts_)
    for (const PeerId peer : part.peers) (void)number_of(peer, hosts);
  std::vector<uint32_t> new_hosts;
  for (const PeerId peer : part_->peers) new_hosts.push_back(number_of(peer, hosts));
  const auto to = placed_on(to_, new_hosts);
  if (!to) return to.error();
  for (const Part& part : state_.parts_) {
    auto origin = plan_from(part, *to, hosts);
    if (!origin) return origin.error();
    add_totals(origin->plan.totals, report_.totals);
    gone_.insert(gone_.end(), origin->plan.gone.begin(), origin->plan.gone.end());
    origins_.push_back(std::move(*origin));
  }
  if (!gone_.empty()) return incomplete();
  return options_.extra_bytes_max ? cut() : Status{};
}

Result<Reshape::Origin> Reshape::plan_from(const Part& part, const Layout& to,
                                           HostNumbers& hosts) const {
  const View& view = session_.view();
  tensor::PlanOptions options;
  std::vector<uint32_t> old_hosts;
  std::vector<Rank> givers;
  for (const PeerId peer : part.peers) {
    const Rank rank = view.rank_of(peer);
    const bool is_there = rank >= 0 && opening_of(rank).has(ground_);
    if (!is_there) options.lost.push_back(static_cast<Rank>(givers.size()));
    givers.push_back(is_there ? rank : -1);
    old_hosts.push_back(number_of(peer, hosts));
  }
  for (const PeerId peer : part_->peers) {
    const auto old = std::ranges::find(part.peers, peer);
    options.members.push_back(
        old == part.peers.end() ? tensor::kNewcomer : static_cast<Rank>(old - part.peers.begin()));
  }
  if (!part.tensors.empty())
    for (const tensor::TensorInfo& tensor : to.collection().tensors()) {
      const auto old = part.layout.collection().find(tensor.name);
      options.tensors.push_back(old && part.has(*old));
    }
  auto from = placed_on(part.layout, old_hosts);
  if (!from) return from.error();
  auto plan = tensor::make_plan(*from, to, options);
  if (!plan) return plan.error();
  return Origin{.part = part,
                .layout = std::move(*from),
                .tensors = std::move(options.tensors),
                .givers = std::move(givers),
                .lost = std::move(options.lost),
                .plan = std::move(*plan)};
}

Error Reshape::incomplete() const {
  std::vector<tensor::Gone> all = gone_;
  std::ranges::sort(all, [](const tensor::Gone& a, const tensor::Gone& b) {
    return std::tie(a.tensor, a.box) < std::tie(b.tensor, b.box);
  });
  uint64_t bytes = 0;
  std::vector<std::string> pieces;
  for (const tensor::Gone& gone : all) {
    const tensor::TensorInfo& tensor = to_.collection()[gone.tensor];
    bytes += volume(gone.box) * size_of(tensor.dtype);
    if (pieces.size() < kGoneNamedMax)
      pieces.push_back(fmt::format("'{}' {}", tensor.name, to_string(gone.box)));
  }
  std::vector<std::string> lost;  // of each layout
  for (const Origin& origin : origins_)
    if (!origin.plan.is_complete())
      lost.push_back(fmt::format("rank{} {}", origin.lost.size() == 1 ? "" : "s",
                                 fmt::join(origin.lost, ", ")));
  const size_t more = all.size() - pieces.size();
  if (options_.gone != nullptr) *options_.gone = std::move(all);
  return invalid(fmt::format(
      "the state is not complete any more: {} in {} pieces died with old {}, and nobody else has "
      "them: {}{}; restore them from a snapshot",
      human_bytes(bytes), pieces.size() + more, fmt::join(lost, ", and in a later layout "),
      fmt::join(pieces, ", "), more == 0 ? "" : fmt::format(" and {} more", more)));
}

// ---- Where memory is short ----------------------------------------------------------------------

// Without a snapshot any single death must leave a copy of everything. A copy that an earlier death
// has taken is counted all the same: what has one left is no safer where it is, because it goes
// only when all members have the new pieces.
Status Reshape::check_copies() const {
  const auto refuse = [](const Layout& layout, const tensor::Scarce& scarce, const char* which) {
    return invalid(fmt::format(
        "with little memory the old layout is consumed, there is no snapshot to restore it from, "
        "and '{}' {} is on one member alone in the {} layout: save a snapshot and say "
        "has_snapshot, use layouts with replicas, or do without extra_bytes_max",
        layout.collection()[scarce.tensor].name, to_string(scarce.box), which));
  };
  constexpr size_t kCopies = 2;
  for (const Part& part : state_.parts_)
    if (const auto scarce = find_scarce(part.layout, kCopies, part.tensors))
      return refuse(part.layout, *scarce, "old");
  if (const auto scarce = find_scarce(to_, kCopies)) return refuse(to_, *scarce, "new");
  return {};
}

Status Reshape::cut() {
  if (!options_.has_snapshot) PLIANT_TRY(check_copies());
  std::vector<BatchOrigin> origins;
  for (const Origin& origin : origins_)
    origins.push_back({.plan = origin.plan, .from = origin.layout, .tensors = origin.tensors});
  auto batches = cut_into_batches(origins, *options_.extra_bytes_max);
  if (!batches) return batches.error();
  batches_ = std::move(*batches);
  return {};
}

Result<ReshapeReport> reshape(Session& session, ShardedState& state, const Layout& to,
                              const ReshapeOptions& options) {
  return Reshape(session, state, to, options).run();
}

}  // namespace pliant
