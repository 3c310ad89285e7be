// For tests of the HTTP side: a loop with a thread of its own, and a client that sends and receives
// exactly what it is told to. Waits are bounded only to keep a broken test from hanging.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "pliant/loop/loop.h"
#include "pliant/transport/socket.h"

namespace pliant {

// Turns its loop until destroyed. What lives on the loop is made and ended inside run().
class LoopThread final {
 public:
  LoopThread()
      : thread_([this] {
          while (!ends_) {
            loop.wait(std::chrono::seconds(1));
            loop.lock();
            loop.turn();
            loop.unlock();
          }
        }) {}
  ~LoopThread() {
    ends_ = true;
    loop.post([] {});
    thread_.join();
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  void run(const std::function<void()>& work) {
    loop.lock();
    work();
    loop.unlock();
    loop.post([] {});  // a timer may be due earlier than the thread believes
  }
  // Asks again, with the loop held, until the answer is yes.
  void wait_until(const std::function<bool()>& condition) {
    const Instant deadline = now() + std::chrono::seconds(30);
    bool reached = false;
    while (!reached && now() < deadline) {
      run([&] { reached = condition(); });
      std::this_thread::yield();
    }
    EXPECT_TRUE(reached) << "waited in vain";
  }

  Loop loop;

 private:
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

class RawClient final {
 public:
  explicit RawClient(const std::string& endpoint) {
    auto socket = connect_tcp(*parse_endpoint(endpoint));
    EXPECT_TRUE(socket.ok());
    socket_ = std::move(*socket);
    wait_for(POLLOUT);
    EXPECT_TRUE(connect_status(socket_).ok());
  }
  void send(std::string_view text) {
    while (!text.empty() && wait_for(POLLOUT)) {
      const ssize_t count = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EAGAIN) continue;
      if (count < 0) return;  // the server may close before it has read everything
      text.remove_prefix(static_cast<size_t>(count));
    }
  }
  // Everything up to and with `mark`; all of it, if the server ends first.
  std::string receive_until(std::string_view mark) {
    while (true) {
      const size_t at = received_.find(mark);
      if (at != std::string::npos) {
        const std::string text = received_.substr(0, at + mark.size());
        received_.erase(0, text.size());
        return text;
      }
      if (!receive_more()) return std::exchange(received_, "");
    }
  }
  std::string receive_all() {
    while (receive_more()) {
    }
    return std::exchange(received_, "");
  }
  // One answer with a Content-Length, head and body.
  std::string receive_answer() {
    std::string head = receive_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const size_t length = std::stoul(head.substr(at + 16));
    while (received_.size() < length && receive_more()) {
    }
    head += received_.substr(0, length);
    received_.erase(0, length);
    return head;
  }
  const Fd& socket() const { return socket_; }

 private:
  bool wait_for(short events) {
    pollfd poll_fd{.fd = socket_.get(), .events = events, .revents = 0};
    const bool ready = poll(&poll_fd, 1, 30'000) > 0;
    EXPECT_TRUE(ready) << "waited in vain for the server; so far: " << received_;
    return ready;
  }
  bool receive_more() {
    if (!wait_for(POLLIN)) return false;
    std::array<char, 65536> room{};
    const ssize_t count = recv(socket_.get(), room.data(), room.size(), 0);
    if (count > 0) received_.append(room.data(), static_cast<size_t>(count));
    return count > 0;
  }

  Fd socket_;
  std::string received_;
};

}  // namespace pliant
