#include "pliant/runtime/store_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

namespace pliant {
namespace {

constexpr uint32_t kMagic = 0x524f5453;  // "STOR"
constexpr size_t kMessageBytesMax = 4096;
constexpr size_t kSummaryBytes = 2 * sizeof(uint32_t) + 3 * sizeof(uint64_t);
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kMemoriesMax = kDescriptorsMax;
constexpr size_t kEndpointBytesMax = 256;
constexpr uint32_t kPeersMax = 1 << 16;

Error unreadable() {
  return invalid("a message of the store cannot be read; do all processes run the same version?");
}

}  // namespace

std::vector<std::byte> encode(const StoreOffer& offer) {
  Writer writer;
  writer.put(offer.ticket.step);
  writer.put(offer.ticket.epoch);
  writer.put(offer.ticket.writer);
  writer.put(offer.ticket.writers);
  std::vector<std::byte> bytes = writer.bytes();
  const std::vector<std::byte> manifest = encode(offer.manifest);
  bytes.insert(bytes.end(), manifest.begin(), manifest.end());
  return bytes;
}

Result<StoreOffer> decode_offer(Bytes body) {
  Reader reader(body);
  StoreOffer offer;
  offer.ticket.step = reader.take<uint64_t>();
  offer.ticket.epoch = reader.take<uint32_t>();
  offer.ticket.writer = reader.take<uint32_t>();
  offer.ticket.writers = reader.take<uint32_t>();
  if (!reader.ok()) return unreadable();
  auto manifest = store::decode_manifest(body.last(reader.left()));
  if (!manifest) return manifest.error();
  offer.manifest = std::move(*manifest);
  return offer;
}

std::vector<std::byte> encode_ask(uint64_t step) {
  Writer writer;
  writer.put(step);
  return writer.bytes();
}

Result<uint64_t> decode_ask(Bytes body) {
  Reader reader(body);
  const auto step = reader.take<uint64_t>();
  if (!reader.finished()) return unreadable();
  return step;
}

std::vector<std::byte> encode_outcome(const Status& outcome) {
  Writer writer;
  writer.put(outcome.ok() ? uint8_t{0} : static_cast<uint8_t>(outcome.code()));
  const std::string message = outcome.ok() ? "" : outcome.error().message;
  writer.put_string(std::string_view(message).substr(0, kMessageBytesMax));
  return writer.bytes();
}

Status decode_outcome(Bytes body) {
  Reader reader(body);
  const auto code = reader.take<uint8_t>();
  std::string message = reader.take_string(kMessageBytesMax);
  if (!reader.finished() || code > static_cast<uint8_t>(Code::kInvalid)) return unreadable();
  if (code == 0) return {};
  return Error{static_cast<Code>(code), std::move(message), {}, {}};
}

std::vector<std::byte> encode(const StoreVersion& version) {
  Writer writer;
  writer.put(version.step);
  writer.put(version.epoch);
  writer.put(version.parts);
  return writer.bytes();
}

Result<StoreVersion> decode_version(Bytes body) {
  Reader reader(body);
  StoreVersion version;
  version.step = reader.take<uint64_t>();
  version.epoch = reader.take<uint32_t>();
  version.parts = reader.take<uint32_t>();
  if (!reader.finished() || version.parts > store::Vault::kWritersMax) return unreadable();
  return version;
}

std::vector<std::byte> encode(const StoreCopy& copy) {
  Writer writer;
  writer.put(copy.host);
  writer.put(static_cast<uint8_t>(copy.purpose));
  std::vector<std::byte> bytes = writer.bytes();
  const std::vector<std::byte> version = encode(copy.version);
  bytes.insert(bytes.end(), version.begin(), version.end());
  return bytes;
}

Result<StoreCopy> decode_copy(Bytes body) {
  Reader reader(body);
  StoreCopy copy;
  copy.host = reader.take<uint32_t>();
  const auto purpose = reader.take<uint8_t>();
  if (!reader.ok() || purpose > static_cast<uint8_t>(StoreCopy::Purpose::kOwn)) return unreadable();
  copy.purpose = static_cast<StoreCopy::Purpose>(purpose);
  const auto version = decode_version(body.last(reader.left()));
  if (!version) return version.error();
  if (version->parts == 0) return unreadable();
  copy.version = *version;
  return copy;
}

std::vector<std::byte> encode(const StoreOutline& outline) {
  Writer writer;
  writer.put(outline.host);
  writer.put(static_cast<uint8_t>(outline.held));
  std::vector<std::byte> bytes = writer.bytes();
  const std::vector<std::byte> manifest = encode(outline.manifest);
  bytes.insert(bytes.end(), manifest.begin(), manifest.end());
  return bytes;
}

Result<StoreOutline> decode_outline(Bytes body) {
  Reader reader(body);
  StoreOutline outline;
  outline.host = reader.take<uint32_t>();
  const auto held = reader.take<uint8_t>();
  if (!reader.ok() || held > 1) return unreadable();
  outline.held = held == 1;
  auto manifest = store::decode_manifest(body.last(reader.left()));
  if (!manifest) return manifest.error();
  outline.manifest = std::move(*manifest);
  return outline;
}

std::vector<std::byte> encode(const StorePull& pull) {
  Writer writer;
  writer.put(pull.step);
  writer.put(pull.epoch);
  writer.put(static_cast<uint32_t>(pull.pieces.size()));
  for (const StorePull::Piece& piece : pull.pieces) {
    writer.put(piece.part);
    writer.put(piece.piece);
  }
  return writer.bytes();
}

Result<StorePull> decode_pull(Bytes body) {
  Reader reader(body);
  StorePull pull;
  pull.step = reader.take<uint64_t>();
  pull.epoch = reader.take<uint32_t>();
  const auto count = reader.take<uint32_t>();
  constexpr size_t kPieceBytes = 2 * sizeof(uint32_t);
  if (!reader.ok() || count > store::Manifest::kPiecesMax || reader.left() != count * kPieceBytes)
    return unreadable();
  pull.pieces.resize(count);
  for (StorePull::Piece& piece : pull.pieces) {
    piece.part = reader.take<uint32_t>();
    piece.piece = reader.take<uint32_t>();
  }
  return pull;
}

std::vector<std::byte> encode(const std::vector<StorePeer>& peers) {
  Writer writer;
  writer.put(static_cast<uint32_t>(peers.size()));
  for (const StorePeer& peer : peers) {
    writer.put(peer.host);
    writer.put_string(peer.endpoint);
  }
  return writer.bytes();
}

Result<std::vector<StorePeer>> decode_peers(Bytes body) {
  Reader reader(body);
  const auto count = reader.take<uint32_t>();
  std::vector<StorePeer> peers;
  for (uint32_t i = 0; i < count && i < kPeersMax && reader.ok(); ++i) {
    StorePeer& peer = peers.emplace_back();
    peer.host = reader.take<uint32_t>();
    peer.endpoint = reader.take_string(kEndpointBytesMax);
  }
  if (!reader.finished() || peers.size() != count) return unreadable();
  return peers;
}

std::vector<std::byte> encode(const std::vector<StoreSummary>& summaries) {
  Writer writer;
  writer.put(static_cast<uint32_t>(summaries.size()));
  for (const StoreSummary& summary : summaries) {
    writer.put(summary.step);
    writer.put(summary.epoch);
    writer.put(summary.parts);
    writer.put(summary.tensors);
    writer.put(summary.memory_bytes);
  }
  return writer.bytes();
}

Result<std::vector<StoreSummary>> decode_summaries(Bytes body) {
  Reader reader(body);
  const auto count = reader.take<uint32_t>();
  if (!reader.ok() || reader.left() % kSummaryBytes != 0 || reader.left() / kSummaryBytes != count)
    return unreadable();
  std::vector<StoreSummary> summaries(count);
  for (StoreSummary& summary : summaries) {
    summary.step = reader.take<uint64_t>();
    summary.epoch = reader.take<uint32_t>();
    summary.parts = reader.take<uint32_t>();
    summary.tensors = reader.take<uint64_t>();
    summary.memory_bytes = reader.take<uint64_t>();
  }
  return summaries;
}

// ---- A line -----------------------------------------------------------------------------------

void StoreLine::send(StoreKind kind, const std::vector<std::byte>& body,
                     store::VaultMemory::Shared memory) {
  Writer head;
  head.put(kMagic);
  head.put(static_cast<uint8_t>(kind));
  head.put(std::array<uint8_t, 3>{static_cast<uint8_t>(memory != nullptr), 0, 0});
  head.put(static_cast<uint64_t>(body.size()));
  Outgoing& frame = out_.emplace_back();
  frame.bytes = head.bytes();
  frame.bytes.insert(frame.bytes.end(), body.begin(), body.end());
  frame.memory = std::move(memory);
}

void StoreLine::send_raw(Bytes bytes) {
  out_.emplace_back().bytes.assign(bytes.begin(), bytes.end());
}

Result<bool> StoreLine::flush() {
  while (!out_.empty()) {
    Outgoing& frame = out_.front();
    const bool first = frame.sent_bytes == 0 && frame.memory != nullptr;
    const int descriptor = first ? frame.memory->fd().get() : -1;
    const auto sent = send_descriptors(socket_, Bytes(frame.bytes).subspan(frame.sent_bytes),
                                       {&descriptor, first ? size_t{1} : size_t{0}});
    if (!sent) return sent.error();
    if (*sent == 0) return false;
    frame.sent_bytes += *sent;
    if (frame.sent_bytes == frame.bytes.size()) out_.pop_front();
  }
  return true;
}

Status StoreLine::fill(int reads_max) {
  if (taken_ > 0) {
    in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(taken_));
    taken_ = 0;
  }
  for (int i = 0; i < reads_max; ++i) {
    const size_t before = in_.size();
    in_.resize(before + kReadBytes);
    auto received = receive_descriptors(socket_, std::span(in_).subspan(before));
    in_.resize(before + (received ? received->size_bytes : 0));
    if (!received) return received.error();
    if (received->state == Received::State::kNothingYet) return {};
    if (received->state == Received::State::kClosed)
      return Error{Code::kPeerLost, "the other end of a line to the store has hung up", {}, {}};
    for (Fd& memory : received->descriptors) memories_.push_back(std::move(memory));
    if (memories_.size() > kMemoriesMax)
      return invalid("more memory was sent to the store than frames");
  }
  return {};
}

Result<std::optional<StoreFrame>> StoreLine::next() {
  Reader head(Bytes(in_).subspan(taken_));
  if (head.left() < kHeadBytes) return std::optional<StoreFrame>();
  const auto magic = head.take<uint32_t>();
  const auto kind = head.take<uint8_t>();
  const auto flags = head.take<std::array<uint8_t, 3>>();
  const auto size_bytes = head.take<uint64_t>();
  if (magic != kMagic || kind < static_cast<uint8_t>(StoreKind::kOffer) ||
      kind > static_cast<uint8_t>(StoreKind::kPull) || flags[0] > 1)
    return unreadable();
  if (size_bytes > kBodyBytesMax)
    return invalid(fmt::format("a message to the store has {}; {} is the most",
                               human_bytes(size_bytes), human_bytes(kBodyBytesMax)));
  if (head.left() < size_bytes) return std::optional<StoreFrame>();
  StoreFrame frame;
  frame.kind = static_cast<StoreKind>(kind);
  const Bytes body = Bytes(in_).subspan(taken_ + kHeadBytes, size_bytes);
  frame.body.assign(body.begin(), body.end());
  taken_ += kHeadBytes + size_bytes;
  if (flags[0] == 1) {
    if (memories_.empty()) return invalid("a message to the store lacks its memory");
    frame.memory = std::move(memories_.front());
    memories_.pop_front();
  }
  return std::optional<StoreFrame>(std::move(frame));
}

}  // namespace pliant
