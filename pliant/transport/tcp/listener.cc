#include "pliant/transport/tcp/listener.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "pliant/base/log.h"

namespace pliant {
namespace {
constexpr Duration kWarningPause = std::chrono::seconds(10);
// When every place is taken, a stranger that was silent for so long makes way for the next: a
// peer's hello comes right behind its connection.
constexpr Duration kPatience = std::chrono::milliseconds(100);
}  // namespace

struct Listener::Stranger {
  Fd fd;
  std::string address;
  Instant since;
  Loop::TimerId deadline{};
  std::array<std::byte, kHelloBytesMax> bytes{};
  size_t filled = 0;
  size_t wanted = kHelloHeadBytes;  // then the whole hello
  uint16_t version = 0;
};

Listener::Listener(Loop& loop, Fd socket, Options options, Welcome welcome)
    : loop_(loop),
      socket_(std::move(socket)),
      options_(std::move(options)),
      welcome_(std::move(welcome)) {
  loop_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { accept_waiting(); });
}

Listener::~Listener() {
  if (resume_) loop_.cancel(*resume_);
  while (!strangers_.empty()) remove(*strangers_.front());
  loop_.unwatch(socket_.get());
}

void Listener::accept_waiting() {
  for (size_t i = 0; i < options_.strangers_max; ++i) {
    if (strangers_.size() >= options_.strangers_max) {
      const Duration age = now() - strangers_.front()->since;
      if (age < kPatience) return pause(kPatience - age);
      drop(*strangers_.front(), "it kept others waiting");
    }
    Result<Fd> fd = accept_from(socket_);
    if (!fd.ok()) {
      // Out of descriptors, most likely. The ones that wait keep the listener ready: do not spin.
      warn(fd.error().message);
      return pause(kPatience);
    }
    if (!fd->valid()) return;
    add(std::move(*fd));
  }
}

void Listener::pause(Duration duration) {
  if (resume_) return;
  loop_.change(socket_.get(), 0);
  resume_ = loop_.at(now() + duration, [this] {
    resume_.reset();
    loop_.change(socket_.get(), EPOLLIN);
  });
}

void Listener::add(Fd fd) {
  const Result<Address> address = remote_address(fd);
  if (!address.ok()) return;  // gone already
  strangers_.push_back(std::make_unique<Stranger>());
  Stranger& stranger = *strangers_.back();
  stranger.fd = std::move(fd);
  stranger.address = to_string(*address);
  stranger.since = now();
  stranger.deadline = loop_.at(stranger.since + options_.handshake_deadline, [this, &stranger] {
    drop(stranger, "it did not introduce itself in time");
  });
  loop_.watch(stranger.fd.get(), EPOLLIN, [this, &stranger](uint32_t) { read(stranger); });
  read(stranger);  // its hello is often there already
}

void Listener::read(Stranger& stranger) {
  while (stranger.filled < stranger.wanted) {
    const ssize_t got = recv(stranger.fd.get(), stranger.bytes.data() + stranger.filled,
                             stranger.wanted - stranger.filled, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return drop(stranger, "it left without introducing itself");
    stranger.filled += static_cast<size_t>(got);
    if (stranger.filled == kHelloHeadBytes) {
      const Result<HelloHead> head =
          decode_hello_head(std::span(stranger.bytes).first<kHelloHeadBytes>());
      if (!head.ok()) return drop(stranger, head.error().message);
      stranger.version = head->version;
      stranger.wanted = kHelloHeadBytes + head->body_bytes;
    }
  }
  read_hello(stranger);
}

// The whole hello has been read, also that of a refused dialler: bytes left unread when a socket is
// closed would turn the answer into a reset.
void Listener::read_hello(Stranger& stranger) {
  Answer verdict = Answer::kWrongVersion;
  if (stranger.version == kProtocolVersion) {
    const Result<Hello> hello = decode_hello_body(
        std::span(stranger.bytes).subspan(kHelloHeadBytes, stranger.filled - kHelloHeadBytes));
    if (!hello.ok()) return drop(stranger, hello.error().message);
    verdict = judge(*hello, options_.expected);
    if (verdict == Answer::kAccepted) {
      Fd fd = remove(stranger);
      return welcome_(*hello, std::move(fd));
    }
  }
  answer(stranger.fd, verdict);
  drop(stranger, to_string(verdict));
}

bool Listener::answer(const Fd& connection, Answer answer) {
  const auto bytes = encode(answer);
  return ::send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

void Listener::drop(Stranger& stranger, const std::string& why) {
  const std::string address = stranger.address;
  remove(stranger);
  warn(fmt::format("turned away a connection from {}: {}", address, why));
}

Fd Listener::remove(Stranger& stranger) {
  loop_.cancel(stranger.deadline);
  loop_.unwatch(stranger.fd.get());
  Fd fd = std::move(stranger.fd);
  strangers_.remove_if([&](const auto& other) { return other.get() == &stranger; });
  return fd;
}

void Listener::warn(const std::string& message) {
  const Instant time = now();
  if (time < next_warning_) {
    ++warnings_held_back_;
    return;
  }
  next_warning_ = time + kWarningPause;
  const std::string more =
      warnings_held_back_ > 0 ? fmt::format(" (and {} before it)", warnings_held_back_) : "";
  warnings_held_back_ = 0;
  log(LogLevel::kWarning, message + more);
}

}  // namespace pliant
