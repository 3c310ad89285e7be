#include "pliant/runtime/store_copies.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "pliant/base/log.h"
#include "pliant/runtime/store_client.h"

namespace pliant {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
// Until the other host answers; elements may take longer.
constexpr Duration kAnswerMax = std::chrono::seconds(20);

}  // namespace

StoreCopies::StoreCopies(Options options)
    : options_(std::move(options)),
      cancel_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { work(); }) {}

StoreCopies::~StoreCopies() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  const ssize_t written = write(cancel_.get(), &one, sizeof one);
  PLIANT_CHECK(!cancel_.valid() || written == sizeof one, "an eventfd takes a small number");
  changed_.notify_one();
  thread_.join();
}

// Outlines first: they are small, and tell what is lost if this host does not live to send more.
void StoreCopies::set_peers(const std::vector<StorePeer>& all,
                            const std::vector<StorePeer>& copied) {
  std::vector<Target> targets;
  for (const StorePeer& peer : all) targets.push_back({peer, StoreCopy::Purpose::kOutline});
  for (const StorePeer& peer : copied) targets.push_back({peer, StoreCopy::Purpose::kCopy});
  {
    const std::lock_guard guard(mutex_);
    targets_ = std::move(targets);
  }
  changed_.notify_one();
}

void StoreCopies::keep(store::Version::Shared version) {
  {
    const std::lock_guard guard(mutex_);
    newest_ = std::move(version);
    served_.clear();
  }
  changed_.notify_one();
}

// A peer that cannot be reached is tried again with the next version.
void StoreCopies::work() {
  std::unique_lock lock(mutex_);
  const auto next = [&] {
    return std::ranges::find_if(targets_, [&](const Target& target) {
      return std::ranges::find(served_, target) == served_.end();
    });
  };
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (newest_ && next() != targets_.end()); });
    if (stopping_) return;
    const Target target = *next();
    served_.push_back(target);
    const store::Version::Shared version = newest_;
    lock.unlock();
    const Status sent = send(*version, target);
    // Without an outline nothing is lost, and the same host has a warning if it gets a copy.
    if (!sent.ok() && sent.code() != Code::kCancelled &&
        target.purpose == StoreCopy::Purpose::kCopy)
      log(LogLevel::kWarning, fmt::format("step {} has no copy on host {}: {}", version->step(),
                                          target.peer.host, sent.error().message));
    lock.lock();
  }
}

Status StoreCopies::send(const store::Version& version, const Target& target) const {
  const StoreClient there({.name = {},
                           .job = options_.job,
                           .token = options_.token,
                           .host = target.peer.host,
                           .endpoint = target.peer.endpoint},
                          {.host = options_.host, .slot = 0, .incarnation = 1});
  return there.send_copy(
      {options_.host,
       target.purpose,
       {version.step(), version.epoch(), static_cast<uint32_t>(version.parts().size())}},
      version.parts(), now() + kAnswerMax, cancel_.get());
}

// ---- Pieces for others ------------------------------------------------------------------------

Result<PullStream> PullStream::make(store::Version::Shared version, const StorePull& pull) {
  PullStream stream(std::move(version));
  const std::vector<store::VaultPart>& parts = stream.version_->parts();
  std::unordered_map<std::string_view, uint32_t> numbers;
  for (const StorePull::Piece& wanted : pull.pieces) {
    if (wanted.part >= parts.size() || wanted.piece >= parts[wanted.part].manifest.pieces.size())
      return invalid(fmt::format("step {} has no piece {} of part {} any more", pull.step,
                                 wanted.piece, wanted.part));
    const store::VaultPart& part = parts[wanted.part];
    store::ManifestPiece piece = part.manifest.pieces[wanted.piece];
    stream.pieces_.push_back(
        part.memory->bytes().subspan(piece.offset, part.manifest.piece_bytes(piece)));
    const store::TensorInfo& info = part.manifest.tensors[piece.tensor];
    const auto [place, is_new] =
        numbers.emplace(info.name, static_cast<uint32_t>(stream.manifest_.tensors.size()));
    if (is_new) stream.manifest_.tensors.push_back(info);
    piece.tensor = place->second;
    stream.manifest_.pieces.push_back(piece);
  }
  PLIANT_TRY(place_pieces(stream.manifest_));
  return stream;
}

// Pieces begin at aligned places; zeros lie between them.
std::vector<std::byte> PullStream::next() {
  const uint64_t size = std::min<uint64_t>(kChunkBytes, manifest_.memory_bytes - sent_bytes_);
  std::vector<std::byte> chunk(size);
  for (; piece_ < pieces_.size(); ++piece_) {
    const uint64_t begin = manifest_.pieces[piece_].offset;
    const uint64_t end = begin + pieces_[piece_].size();
    const uint64_t from = std::max(begin, sent_bytes_);
    const uint64_t to = std::min(end, sent_bytes_ + size);
    if (from < to)
      std::ranges::copy(pieces_[piece_].subspan(from - begin, to - from),
                        chunk.begin() + static_cast<ptrdiff_t>(from - sent_bytes_));
    if (end > sent_bytes_ + size) break;
  }
  sent_bytes_ += size;
  return chunk;
}

// ---- The receiver -----------------------------------------------------------------------------

Status PartReceiver::begin(store::Manifest manifest) {
  auto draft = store::VaultDraft::make(manifest.memory_bytes);
  if (!draft) return draft.error();
  draft_.emplace(std::move(*draft));
  manifest_ = std::move(manifest);
  received_bytes_ = 0;
  return {};
}

Result<std::optional<store::VaultPart>> PartReceiver::add(Bytes bytes) {
  if (bytes.size() > manifest_.memory_bytes - received_bytes_)
    return invalid("another host sent more than it announced");
  PLIANT_TRY(draft_->write(received_bytes_, bytes));
  received_bytes_ += bytes.size();
  if (received_bytes_ < manifest_.memory_bytes) return std::optional<store::VaultPart>();
  auto memory = draft_->seal();
  if (!memory) return memory.error();
  draft_.reset();
  return std::optional(store::VaultPart{std::move(manifest_), std::move(*memory)});
}

Result<bool> CopyReceiver::take(const StoreFrame& frame) {
  if (frame.kind == StoreKind::kCopy && !about_) {
    const auto about = decode_copy(frame.body);
    if (!about) return about.error();
    about_ = *about;
    return false;
  }
  if (frame.kind == StoreKind::kCopyPart && about_ && !part_.begun()) {
    PLIANT_TRY(begin_part(frame.body));
    return outline_.size() == about_->version.parts;
  }
  if (frame.kind != StoreKind::kCopyBytes || !part_.begun())
    return invalid("another host's store sent its copy in the wrong order");
  auto part = part_.add(frame.body);
  if (!part) return part.error();
  if (part->has_value()) parts_.push_back(std::move(**part));
  return parts_.size() == about_->version.parts;
}

store::Vault::Outline CopyReceiver::take_outline() {
  return {about_->version.step, about_->version.epoch, std::move(outline_)};
}

// The kernel gives memory for what arrives, not for what is announced.
Status CopyReceiver::begin_part(Bytes body) {
  auto manifest = store::decode_manifest(body);
  if (!manifest) return manifest.error();
  if (about_->purpose == StoreCopy::Purpose::kOutline) {
    outline_.push_back(std::move(*manifest));
    return {};
  }
  if (bytes_max_ > 0 && manifest->memory_bytes > bytes_max_ - std::min(bytes_, bytes_max_))
    return Error{Code::kOverloaded,
                 fmt::format("a copy of more than {} does not fit", human_bytes(bytes_max_)),
                 {},
                 {}};
  bytes_ += manifest->memory_bytes;
  return part_.begin(std::move(*manifest));
}

}  // namespace pliant
