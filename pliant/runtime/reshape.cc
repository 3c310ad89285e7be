#include "pliant/runtime/reshape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "pliant/base/bytes.h"
#include "pliant/runtime/reshape_call.h"
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
  if (seats && options_.extra_bytes_max && !options_.has_snapshot)
    seats = invalid(
        "a change of layout with little memory consumes the old layout, and there is no snapshot "
        "to "
        "restore it from: save one and say has_snapshot, or do without extra_bytes_max");
  ReshapeOpening mine;
  if (state_.current_) {
    mine.generation = state_.current_->generation;
    mine.digest = state_.current_->digest;
  }
  if (state_.other_) {
    mine.other_generation = state_.other_->generation;
    mine.other_digest = state_.other_->digest;
  }
  if (seats) {
    seats_ = std::move(*seats);
    part_ = ShardedState::make_part(session_, to_, seats_);
    const uint64_t extra = options_.extra_bytes_max.value_or(UINT64_MAX);
    mine.to_digest =
        std::max<uint64_t>(1, hash64(std::as_bytes(std::span(&extra, 1)), part_->digest));
  }
  openings_.resize(static_cast<size_t>(session_.size()));
  PLIANT_TRY(
      session_.all_gather("pliant/reshape/open", &mine, openings_.data(), sizeof mine, DType::kU8));
  for (const ReshapeOpening& opening : openings_) newest_ = std::max(newest_, opening.generation);
  settle();
  if (!seats) return seats.error();
  return check(openings_);
}

// A change of layout that some members could not see through to its end: it counts if anybody knows
// that all had come through.
void Reshape::settle() {
  if (newest_ == 0) return;
  const auto is_newest = [&](const std::optional<Part>& part) {
    return part && part->generation == newest_;
  };
  if (!is_newest(state_.current_) && is_newest(state_.other_))
    state_.current_ = std::move(state_.other_);
  state_.other_.reset();
}

Status Reshape::check(const std::vector<ReshapeOpening>& openings) const {
  if (newest_ == 0)
    return invalid("nobody has a state to reshape: allocate one, or restore one from a snapshot");
  std::optional<Rank> first;  // that has the state
  for (size_t i = 0; i < openings.size(); ++i) {
    const ReshapeOpening& opening = openings[i];
    const auto rank = static_cast<Rank>(i);
    if (opening.magic != kReshapeMagic)
      return invalid(fmt::format("{} runs another version of this program", describe(rank)));
    if (opening.to_digest == 0)
      return invalid(
          fmt::format("{} was asked for a layout that does not fit the members; its own "
                      "error says why",
                      describe(rank)));
    if (opening.to_digest != openings[0].to_digest)
      return invalid(
          fmt::format("{} wants another layout than {}: all members must ask for the "
                      "same one",
                      describe(rank), describe(0)));
    if (opening.is_newcomer(newest_)) continue;
    if (!opening.has(newest_))
      return invalid(
          fmt::format("{} has a state of generation {}, others one of {}: it has missed "
                      "a change of layout; let it join with an empty state",
                      describe(rank), opening.generation, newest_));
    if (!first) first = rank;
    const auto& reference = openings[static_cast<size_t>(*first)];
    if (opening.digest_of(newest_) != reference.digest_of(newest_))
      return invalid(fmt::format("the states of {} and {} have different layouts", describe(rank),
                                 describe(*first)));
  }
  return {};
}

// Members that have just come do not know the old layout.
Status Reshape::learn_layout() {
  Rank root = -1;
  bool has_newcomers = false;
  for (size_t i = openings_.size(); i-- > 0;) {
    if (openings_[i].has(newest_)) root = static_cast<Rank>(i);
    has_newcomers = has_newcomers || !openings_[i].has(newest_);
  }
  if (before() != nullptr) {
    from_ = before()->layout;
    from_peers_ = before()->peers;
  }
  if (!has_newcomers) return {};
  Writer writer;
  if (session_.rank() == root) {
    writer.put_string(tensor::to_json({.spec = from_->spec(), .collection = from_->collection()}));
    writer.put(static_cast<uint64_t>(from_peers_.size()));
    for (const PeerId peer : from_peers_) writer.put(peer.packed());
  }
  std::vector<std::byte> bytes = writer.bytes();
  uint64_t size = bytes.size();
  PLIANT_TRY(session_.broadcast("pliant/reshape/size", &size, 1, DType::kU64, root));
  if (size > kDescriptionBytesMax) return invalid("the description of the old layout is too large");
  bytes.resize(size);
  PLIANT_TRY(session_.broadcast("pliant/reshape/layout", bytes.data(), size, DType::kU8, root));
  Status taken;
  if (before() == nullptr) taken = take_description(bytes);
  auto verdicts = exchange("pliant/reshape/learned", verdict_of(taken));
  if (!verdicts) return verdicts.error();
  return judge(*verdicts);
}

Status Reshape::take_description(Bytes bytes) {
  Reader reader(bytes);
  auto document = tensor::parse_layout(reader.take_string(bytes.size()));
  if (!document) return document.error();
  const auto count = reader.take<uint64_t>();
  for (uint64_t i = 0; i < count && reader.ok(); ++i)
    from_peers_.push_back(PeerId::unpack(reader.take<uint64_t>()));
  if (!reader.finished() || !document->collection)
    return invalid("the description of the old layout is damaged");
  auto layout =
      Layout::make(std::move(document->spec),
                   std::make_shared<const tensor::Collection>(std::move(*document->collection)));
  if (!layout) return layout.error();
  if (layout->mesh().size() != from_peers_.size())
    return invalid("the description of the old layout is damaged");
  from_ = std::move(*layout);
  return {};
}

Status Reshape::make_plan() {
  const View& view = session_.view();
  std::map<uint32_t, uint32_t> numbers;  // of hosts, densely
  const auto host_of = [&](PeerId peer) {
    return numbers.try_emplace(peer.host, static_cast<uint32_t>(numbers.size())).first->second;
  };
  std::vector<uint32_t> old_hosts;
  std::vector<uint32_t> new_hosts;
  std::vector<Rank> givers;
  tensor::PlanOptions options;
  for (const PeerId peer : from_peers_) {
    const Rank rank = view.rank_of(peer);
    const bool is_there = rank >= 0 && openings_[static_cast<size_t>(rank)].has(newest_);
    if (!is_there) options.lost.push_back(static_cast<Rank>(givers.size()));
    givers.push_back(is_there ? rank : -1);
    old_hosts.push_back(host_of(peer));
  }
  for (const PeerId peer : part_->peers) {
    const auto old = std::ranges::find(from_peers_, peer);
    options.members.push_back(old == from_peers_.end()
                                  ? tensor::kNewcomer
                                  : static_cast<Rank>(old - from_peers_.begin()));
    new_hosts.push_back(host_of(peer));
  }
  auto from = placed_on(*from_, old_hosts);
  if (!from) return from.error();
  auto to = placed_on(to_, new_hosts);
  if (!to) return to.error();
  auto plan = tensor::make_plan(*from, *to, options);
  if (!plan) return plan.error();
  plan_ = std::move(*plan);
  from_ = std::move(*from);
  report_.totals = plan_.totals;
  if (!plan_.is_complete()) return incomplete(options.lost);
  if (options_.extra_bytes_max) {
    auto batches = cut_into_batches(plan_, *from_, *options_.extra_bytes_max);
    if (!batches) return batches.error();
    batches_ = std::move(*batches);
  }
  scene_.emplace(ReshapeScene{.session = session_, .plan = plan_, .from = *from_});
  scene_->givers = std::move(givers);
  scene_->takers = seats_;
  scene_->old_rank = before() != nullptr ? before()->rank : -1;
  scene_->new_rank = part_->rank;
  return {};
}

Error Reshape::incomplete(const std::vector<Rank>& lost) const {
  if (options_.gone != nullptr) *options_.gone = plan_.gone;
  uint64_t bytes = 0;
  std::vector<std::string> pieces;
  for (const tensor::Gone& gone : plan_.gone) {
    const tensor::TensorInfo& tensor = (*plan_.collection)[gone.tensor];
    bytes += volume(gone.box) * size_of(tensor.dtype);
    if (pieces.size() < kGoneNamedMax)
      pieces.push_back(fmt::format("'{}' {}", tensor.name, to_string(gone.box)));
  }
  const size_t more = plan_.gone.size() - pieces.size();
  return invalid(fmt::format(
      "the state is not complete any more: {} in {} pieces died with old rank{} {}, and nobody "
      "else "
      "has them: {}{}; restore them from a snapshot",
      human_bytes(bytes), plan_.gone.size(), lost.size() == 1 ? "" : "s", fmt::join(lost, ", "),
      fmt::join(pieces, ", "), more == 0 ? "" : fmt::format(" and {} more", more)));
}

Result<ReshapeReport> reshape(Session& session, ShardedState& state, const Layout& to,
                              const ReshapeOptions& options) {
  return Reshape(session, state, to, options).run();
}

}  // namespace pliant
