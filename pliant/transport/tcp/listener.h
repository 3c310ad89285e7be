// The door of a transport: takes connections, and lets in those that prove to belong to the job.
//
// Until then a connection is a stranger: a fixed kilobyte, a deadline, and one of a bounded number.
// Strangers that send garbage, a huge length or nothing are dropped; the log says so, not more
// often than every few seconds. Owned by TcpTransport, driven by its loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "pliant/loop/loop.h"
#include "pliant/transport/handshake.h"
#include "pliant/transport/socket.h"

namespace pliant {

class Listener final {
 public:
  struct Options {
    Expectation expected;
    Duration handshake_deadline;
    size_t strangers_max;
  };
  // Gets a connection whose hello is right; the owner answers it (see answer()).
  using Welcome = std::function<void(const Hello&, Fd)>;

  Listener(Loop& loop, Fd socket, Options options, Welcome welcome);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Says yes or why not; false if the connection is gone.
  static bool answer(const Fd& connection, Answer answer);

 private:
  struct Stranger;
  using Strangers = std::list<std::unique_ptr<Stranger>>;

  void accept_waiting();
  void add(Fd fd);
  void read(Stranger& stranger);
  void read_hello(Stranger& stranger);
  void drop(Stranger& stranger, const std::string& why);
  Fd remove(Stranger& stranger);
  void pause(Duration duration);
  void warn(const std::string& message);

  Loop& loop_;
  const Fd socket_;
  const Options options_;
  const Welcome welcome_;
  Strangers strangers_;  // the oldest first
  std::optional<Loop::TimerId> resume_;
  Instant next_warning_{};
  uint64_t warnings_held_back_ = 0;
};

}  // namespace pliant
