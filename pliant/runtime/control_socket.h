// One connection that carries control messages, watched by a loop. Owned by a coordinator, an agent
// or a ControlLink; every call is made, and every callback runs, with the loop held. A callback may
// destroy the socket.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/control.h"
#include "pliant/transport/socket.h"

namespace pliant {

// The numeric address alone, without brackets and port.
std::string host_text(const Address& address);

class ControlSocket final {
 public:
  struct Callbacks {
    std::function<void(Message)> on_message;
    // The other end closed, the connection broke or did not come about, or it sent what is no
    // message. Once, and nothing after it.
    std::function<void(const Error&)> on_closed;
  };
  enum class State { kConnecting, kOpen, kClosed };

  // `fd` is a connected or connecting stream; messages over `size_bytes_max` close it.
  ControlSocket(Loop& loop, Fd fd, State state, size_t size_bytes_max, Callbacks callbacks);
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  // Sends now what the connection takes and the rest when it can. Never calls back.
  void send(const Message& message);
  // The same of a message that goes to many and was encoded once.
  void send_encoded(Bytes bytes);
  // Nothing more will be sent; what was sent still arrives.
  void finish_sending();
  // Handles what has arrived without waiting for the loop's next turn.
  void read_now();
  void set_limit(size_t size_bytes_max) { reader_.set_limit(size_bytes_max); }
  bool open() const { return state_ == State::kOpen; }
  const Fd& fd() const { return fd_; }

 private:
  void on_events(uint32_t events);
  void flush();
  void watch_for_room(bool wanted);
  bool deliver();  // false if a callback destroyed or closed this
  void close(const Error& error);

  Loop& loop_;
  Fd fd_;
  State state_;
  MessageReader reader_;
  Callbacks callbacks_;
  std::vector<std::byte> out_;
  size_t out_start_ = 0;
  bool waiting_for_room_ = false;
  bool write_broken_ = false;
  bool finishing_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pliant
