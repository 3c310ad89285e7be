#include "pliant/runtime/output.h"

#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace pliant {
namespace {

constexpr size_t kQueueBytesMax = 1 << 20;

bool has_room(int fd, int timeout_ms) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, timeout_ms) > 0;
}

}  // namespace

std::string LinePrefixer::feed(std::string_view bytes) {
  rest_ += bytes;
  std::string lines;
  std::string_view left = rest_;
  while (!left.empty()) {
    size_t end = left.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      if (left.size() <= kLineBytesMax) break;
      end = kLineBytesMax - 1;
    } else if (left[end] == '\r') {
      // "\r\n" ends one line; whether the '\n' follows is not known yet at the end of the bytes.
      if (end + 1 == left.size()) break;
      if (left[end + 1] == '\n') ++end;
    }
    put_line(left.substr(0, end + 1), lines);
    left.remove_prefix(end + 1);
  }
  rest_ = std::string(left);
  return lines;
}

std::string LinePrefixer::finish() {
  std::string lines;
  if (!rest_.empty()) put_line(rest_, lines);
  rest_.clear();
  return lines;
}

void LinePrefixer::put_line(std::string_view line, std::string& lines) const {
  lines += prefix_;
  lines += line;
  if (line.back() != '\n' && line.back() != '\r') lines += '\n';
}

Output::Output(Loop& loop, int fd) : loop_(loop), fd_(fd), kind_(Kind::kPlain) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    broken_ = true;
  } else if (S_ISSOCK(status.st_mode)) {
    kind_ = Kind::kSocket;
  } else if (S_ISFIFO(status.st_mode) || isatty(fd) == 1) {
    kind_ = Kind::kPipe;
  }
}

Output::~Output() { stop_watching(); }

bool Output::full() const { return queue_.size() - start_ >= kQueueBytesMax; }

void Output::write(std::string_view bytes) {
  if (broken_ || bytes.empty()) return;
  queue_ += bytes;
  if (!watching_) flush();
}

void Output::when_room(const void* owner, std::function<void()> callback) {
  waiting_[owner] = std::move(callback);
}

void Output::flush() {
  while (start_ < queue_.size()) {
    if (kind_ != Kind::kPlain && !has_room(fd_, 0)) break;
    const ssize_t written = write_some(std::string_view(queue_).substr(start_));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (written < 0) {
      discard();
      break;
    }
    start_ += static_cast<size_t>(written);
  }
  if (start_ == queue_.size()) {
    queue_.clear();
    start_ = 0;
    stop_watching();
  } else if (!watching_ && kind_ != Kind::kPlain) {
    watching_ = true;
    loop_.watch(fd_, EPOLLOUT, [this](uint32_t) { flush(); });
  }
  if (full() || waiting_.empty()) return;
  for (auto& [owner, callback] : std::exchange(waiting_, {})) callback();
}

// A pipe that has room takes PIPE_BUF bytes without blocking and without mixing them with those of
// another process; whole lines if possible.
ssize_t Output::write_some(std::string_view bytes) const {
  if (kind_ == Kind::kPlain) return ::write(fd_, bytes.data(), bytes.size());
  bytes = bytes.substr(0, PIPE_BUF);
  if (const size_t newline = bytes.rfind('\n'); newline != std::string_view::npos)
    bytes = bytes.substr(0, newline + 1);
  if (kind_ == Kind::kSocket)
    return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return ::write(fd_, bytes.data(), bytes.size());
}

void Output::drain() {
  stop_watching();
  while (start_ < queue_.size()) {
    if (kind_ != Kind::kPlain) has_room(fd_, -1);
    const ssize_t written = write_some(std::string_view(queue_).substr(start_));
    if (written < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (written < 0) break;
    start_ += static_cast<size_t>(written);
  }
  queue_.clear();
  start_ = 0;
}

void Output::stop_watching() {
  if (!watching_) return;
  watching_ = false;
  loop_.unwatch(fd_);
}

void Output::discard() {
  broken_ = true;
  queue_.clear();
  start_ = 0;
}

}  // namespace pliant
