#include "pliant/transport/tcp/outbound.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pliant/transport/overlap.h"

namespace pliant {
namespace {

constexpr Duration kPauseMin = std::chrono::milliseconds(1);
constexpr Duration kPauseMax = std::chrono::milliseconds(100);
constexpr size_t kMessagesPerWrite = 64;
// So much in one system call that its price vanishes, and so little that the receiver's core is
// already busy with the first half while ours copies the second. 256 KiB to 1 MiB measure alike.
constexpr size_t kBytesPerWrite = size_t{512} << 10;
// Up to here a payload is copied behind its head: to hand the kernel one piece is cheaper than two.
constexpr size_t kJoinedBytesMax = size_t{4} << 10;
constexpr int kWritesPerTurn = 8;  // then the other connections have their turn
constexpr uint32_t kClosedEvents = EPOLLIN | EPOLLRDHUP;

}  // namespace

Outbound::Outbound(Loop& loop, Sink& sink, Options options, Failed failed)
    : loop_(loop),
      sink_(sink),
      options_(std::move(options)),
      failed_(std::move(failed)),
      pause_(kPauseMin) {}

Outbound::~Outbound() {
  cancel(deadline_);
  cancel(next_dial_);
  cancel(failure_);
  close();
}

void Outbound::send(const Frame& frame, std::span<const std::byte> payload, uint64_t cookie) {
  queue_.push_back({.frame = frame, .payload = payload, .cookie = cookie});
  if (state_ == State::kIdle && !deadline_) {
    deadline_ = loop_.at(now() + options_.connect_deadline, [this] {
      deadline_.reset();
      fail({Code::kTimeout,
            fmt::format("peer {} at {} did not answer within {}: {}", to_string(options_.hello.to),
                        to_string(options_.address), human_duration(options_.connect_deadline),
                        last_error_),
            options_.hello.to,
            {}});
    });
    dial();
  } else if (state_ == State::kOpen && !flushing_ && !wants_room_) {
    flush();
  }
}

void Outbound::forget(std::span<const std::byte> memory) {
  for (Message& message : queue_) {
    if (!overlap(message.payload, memory)) continue;
    message.copy = std::make_unique_for_overwrite<std::byte[]>(message.payload.size());
    std::memcpy(message.copy.get(), message.payload.data(), message.payload.size());
    message.payload = {message.copy.get(), message.payload.size()};
  }
}

void Outbound::dial() {
  Result<Fd> fd = connect_tcp(options_.address, options_.silence_max);
  if (!fd.ok()) return retry(fd.error());
  fd_ = std::move(*fd);
  state_ = State::kConnecting;
  if (last_error_.empty()) last_error_ = "no connection";
  loop_.watch(fd_.get(), EPOLLOUT, [this](uint32_t events) { on_event(events); });
}

void Outbound::on_event(uint32_t events) {
  switch (state_) {
    case State::kConnecting: return on_connected();
    case State::kGreeting: return on_answer();
    case State::kOpen:
      // Nothing is ever sent to us here: readable means closed.
      if ((events & ~uint32_t{EPOLLOUT}) != 0) return on_closed();
      return flush();
    case State::kIdle:
    case State::kBroken: return;
  }
}

void Outbound::on_connected() {
  if (const Status status = connect_status(fd_); !status.ok()) return retry(status.error());
  const std::vector<std::byte> hello = encode(options_.hello);
  // A fresh socket has room for a kilobyte; if it takes less, it has failed already.
  const ssize_t taken = ::send(fd_.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
  if (taken != static_cast<ssize_t>(hello.size())) return retry(system_error("cannot greet"));
  state_ = State::kGreeting;
  last_error_ = "it took the connection but said nothing";
  answer_filled_ = 0;
  loop_.change(fd_.get(), kClosedEvents);
}

void Outbound::on_answer() {
  const ssize_t got =
      recv(fd_.get(), answer_.data() + answer_filled_, answer_.size() - answer_filled_, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got < 0) return retry(system_error("no answer to our hello"));
  if (got == 0) return retry(invalid("it closed the connection instead of answering our hello"));
  answer_filled_ += static_cast<size_t>(got);
  if (answer_filled_ < answer_.size()) return;
  const Result<Answer> answer = decode_answer(answer_);
  if (!answer.ok()) return retry(answer.error());
  if (*answer != Answer::kAccepted) {
    return fail({Code::kInvalid,
                 fmt::format("peer {} at {} refused us: {}", to_string(options_.hello.to),
                             to_string(options_.address), to_string(*answer)),
                 options_.hello.to,
                 {}});
  }
  state_ = State::kOpen;
  cancel(deadline_);
  flush();
}

// Nothing of the queue has left before the handshake's end, so that dialling again is safe.
void Outbound::retry(const Error& error) {
  close();
  state_ = State::kIdle;
  last_error_ = error.message;
  next_dial_ = loop_.at(now() + pause_, [this] {
    next_dial_.reset();
    dial();
  });
  pause_ = std::min(pause_ * 2, kPauseMax);
}

void Outbound::on_closed() {
  std::byte byte{};
  const ssize_t got = recv(fd_.get(), &byte, 1, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const std::string how = got == 0  ? "closed the connection"
                          : got > 0 ? "sent data on a connection where it only receives"
                                    : std::string("is gone: ") + std::strerror(errno);
  fail({Code::kPeerLost,
        fmt::format("peer {} at {} {}", to_string(options_.hello.to), to_string(options_.address),
                    how),
        options_.hello.to,
        {}});
}

void Outbound::flush() {
  flushing_ = true;
  for (int write = 0; write < kWritesPerTurn && !queue_.empty(); ++write) {
    size_t asked = 0;
    const ssize_t taken = write_batch(&asked);
    if (taken < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
        fail_soon({Code::kPeerLost,
                   fmt::format("peer {} at {} is gone: {}", to_string(options_.hello.to),
                               to_string(options_.address), std::strerror(errno)),
                   options_.hello.to,
                   {}});
      break;
    }
    retire(static_cast<size_t>(taken));
    if (static_cast<size_t>(taken) < asked) break;  // the kernel is full: no need to ask it again
  }
  flushing_ = false;
  if (state_ == State::kOpen) want_room(!queue_.empty());
}

ssize_t Outbound::write_batch(size_t* asked) {
  if (const Message& only = queue_.front();
      queue_.size() == 1 && front_taken_ == 0 && only.payload.size() <= kJoinedBytesMax) {
    std::array<std::byte, sizeof(Frame) + kJoinedBytesMax> joined;
    std::memcpy(joined.data(), &only.frame, sizeof(Frame));
    std::copy(only.payload.begin(), only.payload.end(), joined.begin() + sizeof(Frame));
    *asked = only.size_bytes();
    return ::send(fd_.get(), joined.data(), *asked, MSG_NOSIGNAL);
  }
  std::array<iovec, 2 * kMessagesPerWrite> pieces;
  size_t count = 0;
  size_t skip = front_taken_;
  const auto add = [&](const void* data, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    size = std::min(size - skipped, kBytesPerWrite - *asked);
    if (size == 0) return;
    pieces[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped, size};
    *asked += size;
  };
  const size_t messages = std::min(queue_.size(), kMessagesPerWrite);
  for (size_t i = 0; i < messages && *asked < kBytesPerWrite; ++i) {
    add(&queue_[i].frame, sizeof(Frame));
    add(queue_[i].payload.data(), queue_[i].payload.size());
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  return sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
}

// Takes what is complete off the queue before it tells anyone: sent() may send().
void Outbound::retire(size_t taken) {
  std::array<uint64_t, kMessagesPerWrite> cookies;
  size_t count = 0;
  front_taken_ += taken;
  while (!queue_.empty() && front_taken_ >= queue_.front().size_bytes()) {
    front_taken_ -= queue_.front().size_bytes();
    cookies[count++] = queue_.front().cookie;
    queue_.pop_front();
  }
  for (size_t i = 0; i < count; ++i) sink_.sent(cookies[i]);
}

void Outbound::want_room(bool wanted) {
  if (wanted == wants_room_) return;
  wants_room_ = wanted;
  loop_.change(fd_.get(), wanted ? kClosedEvents | EPOLLOUT : kClosedEvents);
}

// send() may be deep inside the owner's own work, which must not lose its footing.
void Outbound::fail_soon(Error error) {
  state_ = State::kBroken;
  failure_ = loop_.at(now(), [this, error = std::move(error)] {
    failure_.reset();
    fail(error);
  });
}

void Outbound::fail(const Error& error) {
  state_ = State::kBroken;
  const Failed failed = failed_;
  failed(error);
}

void Outbound::close() {
  if (fd_.valid()) loop_.unwatch(fd_.get());
  fd_.reset();
}

void Outbound::cancel(std::optional<Loop::TimerId>& timer) {
  if (timer) loop_.cancel(*timer);
  timer.reset();
}

}  // namespace pliant
