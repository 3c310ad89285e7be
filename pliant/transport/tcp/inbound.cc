#include "pliant/transport/tcp/inbound.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pliant/transport/overlap.h"

namespace pliant {
namespace {
constexpr size_t kBytesPerRead = size_t{1} << 20;
constexpr size_t kBytesPerTurn = size_t{4} << 20;
// Behind a payload of this size only the next head is read ahead: what follows is likely as large,
// and then goes straight to its place. Smaller messages come many at a time.
constexpr size_t kLargeBytes = size_t{16} << 10;
}  // namespace

Inbound::Inbound(Loop& loop, Sink& sink, PeerId from, uint8_t stream, Fd fd,
                 std::span<std::byte> scratch, Ended ended)
    : loop_(loop),
      sink_(sink),
      from_(from),
      stream_(stream),
      fd_(std::move(fd)),
      scratch_(scratch),
      ended_(std::move(ended)) {
  loop_.watch(fd_.get(), EPOLLIN, [this](uint32_t) { read(); });
}

Inbound::~Inbound() { loop_.unwatch(fd_.get()); }

void Inbound::read() {
  for (size_t total = 0; total < kBytesPerTurn;) {
    // The rest of the payload, and behind it whatever comes next.
    const size_t direct = wasted_ ? 0 : std::min(payload_left_, kBytesPerRead);
    const bool ahead = wasted_ || direct == payload_left_;
    std::array<iovec, 2> pieces;
    size_t count = 0;
    const size_t ahead_bytes = !ahead ? 0 : direct >= kLargeBytes ? sizeof(Frame) : scratch_.size();
    if (direct > 0) pieces[count++] = {place_ + payload_done_, direct};
    if (ahead) pieces[count++] = {scratch_.data(), ahead_bytes};
    const size_t room = direct + ahead_bytes;
    // One piece goes faster without a list of pieces, which shows where messages are small.
    const ssize_t got = count == 1 ? recv(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, 0)
                                   : readv(fd_.get(), pieces.data(), static_cast<int>(count));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      const std::string how =
          got == 0 ? "closed the connection" : std::string("is gone: ") + std::strerror(errno);
      return end(End::kClosed, {Code::kPeerLost,
                                fmt::format("peer {} {}{}", to_string(from_), how,
                                            payload_left_ > 0 ? " in the middle of a message" : ""),
                                from_,
                                {}});
    }
    const auto size = static_cast<size_t>(got);
    const size_t placed = std::min(size, direct);
    if (placed > 0) take(placed);
    if (const std::optional<Error> error = parse(scratch_.first(size - placed)))
      return end(End::kRefused, *error);
    if (size < room) return;  // the kernel is empty: no need to ask it again
    total += size;
  }
}

std::optional<Error> Inbound::parse(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t wanted = payload_left_ > 0 ? payload_left_ : sizeof(Frame) - head_filled_;
    const std::span<const std::byte> part = bytes.first(std::min(wanted, bytes.size()));
    bytes = bytes.subspan(part.size());
    if (payload_left_ > 0) {
      if (!wasted_) std::memcpy(place_ + payload_done_, part.data(), part.size());
      take(part.size());
    } else {
      std::memcpy(head_.data() + head_filled_, part.data(), part.size());
      head_filled_ += part.size();
      if (head_filled_ < sizeof(Frame)) return {};
      if (std::optional<Error> error = begin_message()) return error;
    }
  }
  return {};
}

std::optional<Error> Inbound::begin_message() {
  head_filled_ = 0;
  const Result<Frame> frame = decode_frame(head_);
  const Result<std::byte*> place =
      frame.ok() ? sink_.place(from_, *frame) : Result<std::byte*>(frame.error());
  if (!place.ok()) {
    Error error = place.error();
    error.peer = from_;
    return error;
  }
  frame_ = *frame;
  place_ = *place;
  payload_done_ = 0;
  payload_left_ = frame_.payload_bytes;
  wasted_ = false;
  PLIANT_CHECK(place_ != nullptr || payload_left_ == 0, "place() gave no room");
  if (payload_left_ == 0) sink_.arrived(from_, frame_, place_);
  return {};
}

void Inbound::take(size_t size_bytes) {
  payload_done_ += size_bytes;
  payload_left_ -= size_bytes;
  if (payload_left_ > 0) return;
  if (std::exchange(wasted_, false)) return;
  sink_.arrived(from_, frame_, place_);
}

void Inbound::forget(std::span<const std::byte> memory) {
  if (payload_left_ > 0 && overlap({place_, frame_.payload_bytes}, memory)) wasted_ = true;
}

void Inbound::end(End how, const Error& error) {
  const Ended ended = ended_;
  ended(this, how, error);
}

}  // namespace pliant
