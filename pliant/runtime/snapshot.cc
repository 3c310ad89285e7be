#include "pliant/runtime/snapshot.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "pliant/base/checksum.h"

namespace pliant {
namespace {

// The manifest of the pieces, without their checksums.
Result<store::Manifest> manifest_of(std::span<const SnapshotPiece> pieces) {
  store::Manifest manifest;
  std::unordered_map<std::string_view, uint32_t> numbers;
  for (const SnapshotPiece& piece : pieces) {
    const auto [place, is_new] =
        numbers.emplace(piece.tensor.name, static_cast<uint32_t>(manifest.tensors.size()));
    if (is_new) {
      manifest.tensors.push_back(piece.tensor);
    } else if (const auto& other = manifest.tensors[place->second]; other != piece.tensor) {
      return invalid(fmt::format("snapshot: tensor '{}' is {} in one piece and {} in another",
                                 piece.tensor.name, to_string(other), to_string(piece.tensor)));
    }
    manifest.pieces.push_back({place->second, piece.box, 0, 0});
  }
  // Sizes are meaningful only for what a collection may hold.
  const auto collection = tensor::Collection::make(manifest.tensors);
  if (!collection) return invalid("snapshot: " + collection.error().message);
  PLIANT_TRY(place_pieces(manifest));
  PLIANT_TRY(check(manifest));
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint64_t bytes = manifest.piece_bytes(manifest.pieces[i]);
    if (pieces[i].elements.size() != bytes)
      return invalid(fmt::format("snapshot: the piece {} of tensor '{}' has {} bytes instead of {}",
                                 to_string(pieces[i].box), pieces[i].tensor.name,
                                 pieces[i].elements.size(), bytes));
  }
  return manifest;
}

}  // namespace

Status Snapshot::wait() const {
  state_->done.wait(false, std::memory_order_acquire);
  if (state_->outcome.ok()) return {};
  return state_->outcome.error();
}

Snapshots::Snapshots(Options options)
    : options_(std::move(options)),
      cancel_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      alone_(options_.alone) {
  if (options_.place) client_.emplace(*options_.place, options_.self);
}

Snapshots::~Snapshots() {
  const uint64_t one = 1;
  const ssize_t written = write(cancel_.get(), &one, sizeof one);
  PLIANT_CHECK(!cancel_.valid() || written == sizeof one, "an eventfd takes a small number");
  for (Job& job : jobs_) job.thread.join();
}

void Snapshots::forget_done() {
  std::erase_if(jobs_, [](Job& job) {
    if (!job.state->done.load(std::memory_order_acquire)) return false;
    job.thread.join();
    return true;
  });
}

Result<Snapshot> Snapshots::take(const store::VaultTicket& ticket,
                                 std::span<const SnapshotPiece> pieces) {
  const Instant began = now();
  auto manifest = manifest_of(pieces);
  if (!manifest) return manifest.error();
  const std::lock_guard guard(mutex_);
  forget_done();
  if (jobs_.size() >= kInFlightMax)
    return Error{
        Code::kOverloaded,
        fmt::format("snapshot: {} are not in the store yet; wait() for one of them", jobs_.size()),
        {},
        {}};
  auto draft = store::VaultDraft::make(manifest->memory_bytes);
  if (!draft) return draft.error();
  for (size_t i = 0; i < pieces.size(); ++i)
    PLIANT_TRY(draft->write(manifest->pieces[i].offset, pieces[i].elements));
  auto memory = draft->seal();
  if (!memory) return memory.error();
  Snapshot snapshot;
  snapshot.state_ = std::make_shared<Snapshot::State>();
  snapshot.state_->step = ticket.step;
  snapshot.state_->bytes = manifest->memory_bytes;
  snapshot.state_->pause = now() - began;
  jobs_.push_back(
      {snapshot.state_,
       std::thread([this, state = snapshot.state_, ticket,
                    part = store::VaultPart{std::move(*manifest), std::move(*memory)}]() mutable {
         finish(state, ticket, std::move(part));
       })});
  return snapshot;
}

void Snapshots::finish(const std::shared_ptr<Snapshot::State>& state,
                       const store::VaultTicket& ticket, store::VaultPart part) {
  for (store::ManifestPiece& piece : part.manifest.pieces)
    piece.checksum =
        checksum64(part.memory->bytes().subspan(piece.offset, part.manifest.piece_bytes(piece)));
  state->outcome = keep(ticket, std::move(part));
  state->done.store(true, std::memory_order_release);
  state->done.notify_all();
}

Status Snapshots::keep(const store::VaultTicket& ticket, store::VaultPart part) {
  if (client_) return client_->hand_over(ticket, part, now() + options_.timeout, cancel_.get());
  const std::lock_guard guard(mutex_);
  return alone_.add(ticket, std::move(part));
}

Result<store::Version::Shared> Snapshots::restore(uint64_t step) {
  if (client_) return client_->fetch(step, now() + options_.timeout);
  const std::lock_guard guard(mutex_);
  return alone_.find(step);
}

Result<store::Version::Shared> Snapshots::gather(uint64_t step,
                                                 std::span<const StoreRange> wanted) {
  const Instant deadline = now() + options_.timeout;
  auto own = restore(step);
  if (!client_) return own;
  // Without one of its own a host takes the others' word for it.
  if (!own && own.code() != Code::kInvalid) return own.error();
  const auto peers = client_->hosts(deadline);
  if (!peers) return peers.error();
  if (peers->empty() && !own) return own.error();
  std::vector<StoreClient> others;
  for (const StorePeer& peer : *peers) {
    StorePlace place = *options_.place;
    place.host = peer.host;
    place.endpoint = peer.endpoint;
    others.emplace_back(std::move(place), options_.self);
  }
  return pliant::gather({.step = step,
                         .wanted = wanted,
                         .base = own ? *own : nullptr,
                         .own = &*client_,
                         .others = others,
                         .deadline = deadline});
}

}  // namespace pliant
