#include "pliant/runtime/control_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace pliant {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
// One that does not read what it is sent is as good as gone.
constexpr size_t kUnsentBytesMax = 2 * kControlBytesMax;

}  // namespace

std::string host_text(const Address& address) {
  std::string text = to_string(address);
  text.resize(text.rfind(':'));
  if (text.starts_with('[')) text = text.substr(1, text.size() - 2);
  return text;
}

ControlSocket::ControlSocket(Loop& loop, Fd fd, State state, size_t size_bytes_max,
                             Callbacks callbacks)
    : loop_(loop),
      fd_(std::move(fd)),
      state_(state),
      reader_(size_bytes_max),
      callbacks_(std::move(callbacks)) {
  waiting_for_room_ = state == State::kConnecting;
  const uint32_t events = waiting_for_room_ ? EPOLLOUT : EPOLLIN;
  loop_.watch(fd_.get(), events, [this](uint32_t ready) { on_events(ready); });
}

ControlSocket::~ControlSocket() {
  *alive_ = false;
  if (fd_.valid()) loop_.unwatch(fd_.get());
}

void ControlSocket::send(const Message& message) { send_encoded(encode_message(message)); }

void ControlSocket::send_encoded(Bytes bytes) {
  if (state_ == State::kClosed || write_broken_ || finishing_) return;
  if (out_.size() - out_start_ + bytes.size() > kUnsentBytesMax) {
    // The reading side finds the connection closed and says so.
    write_broken_ = true;
    ::shutdown(fd_.get(), SHUT_RDWR);
    return;
  }
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  if (state_ == State::kOpen && !waiting_for_room_) flush();
}

void ControlSocket::finish_sending() {
  finishing_ = true;
  if (state_ == State::kOpen && out_start_ == out_.size()) ::shutdown(fd_.get(), SHUT_WR);
}

void ControlSocket::flush() {
  while (out_start_ < out_.size()) {
    const ssize_t sent =
        ::send(fd_.get(), out_.data() + out_start_, out_.size() - out_start_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      watch_for_room(true);
      return;
    }
    if (sent < 0) {
      // Reading will tell; what the other end sent before it went is still worth reading.
      write_broken_ = true;
      break;
    }
    out_start_ += static_cast<size_t>(sent);
  }
  out_.clear();
  out_start_ = 0;
  watch_for_room(false);
  if (finishing_) ::shutdown(fd_.get(), SHUT_WR);
}

void ControlSocket::watch_for_room(bool wanted) {
  if (wanted == waiting_for_room_) return;
  waiting_for_room_ = wanted;
  loop_.change(fd_.get(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void ControlSocket::on_events(uint32_t events) {
  if (state_ == State::kConnecting) {
    if (const Status status = connect_status(fd_); !status) {
      close(status.error());
      return;
    }
    state_ = State::kOpen;
    // The connection has room now, and a first message is usually waiting.
    loop_.change(fd_.get(), EPOLLIN);
    waiting_for_room_ = false;
    flush();
    return;
  }
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_now();
}

void ControlSocket::read_now() {
  if (state_ != State::kOpen) return;
  std::array<std::byte, kReadBytes> room;
  while (true) {
    const ssize_t got = ::recv(fd_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0) {
      close(system_error("the control connection broke"));
      return;
    }
    if (got == 0) {
      close({Code::kPeerLost, "the control connection was closed", {}, {}});
      return;
    }
    reader_.feed(Bytes(room).subspan(0, static_cast<size_t>(got)));
    if (!deliver()) return;
  }
}

bool ControlSocket::deliver() {
  const std::shared_ptr<bool> alive = alive_;
  while (true) {
    auto next = reader_.next();
    if (!next) {
      close(next.error());
      return false;
    }
    if (!next->has_value()) return true;
    // A copy, because the callback may destroy this and itself with it.
    const auto on_message = callbacks_.on_message;
    on_message(std::move(**next));
    if (!*alive || state_ != State::kOpen) return false;
  }
}

void ControlSocket::close(const Error& error) {
  state_ = State::kClosed;
  loop_.unwatch(fd_.get());
  fd_.reset();
  const auto on_closed = callbacks_.on_closed;
  on_closed(error);
}

}  // namespace pliant
