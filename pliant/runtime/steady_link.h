// A connection to the coordinator that outlives the coordinator: when it closes it is dialled
// again, and whoever owns it introduces itself anew. For agents and launchers of elastic jobs.
//
// Called, and calls back, with the loop held; so is the destructor.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/control.h"
#include "pliant/runtime/control_socket.h"
#include "pliant/transport/socket.h"

namespace pliant {

class SteadyLink final {
 public:
  struct Callbacks {
    // The first messages of each connection after the greeting.
    std::function<std::vector<Message>()> introduction;
    std::function<void(const Message&)> on_message;
    // It is dialled again in a moment.
    std::function<void(const Error&)> on_closed = [](const Error&) {};
  };

  // Dials at once.
  SteadyLink(Loop& loop, Address coordinator, std::string token, Callbacks callbacks);
  ~SteadyLink();
  SteadyLink(const SteadyLink&) = delete;
  SteadyLink& operator=(const SteadyLink&) = delete;

  // Lost if the coordinator is away; what matters then is part of the next introduction.
  void send(const Message& message);
  bool open() const { return socket_ && socket_->open(); }
  // Of an open link.
  Result<Address> local() const { return local_address(socket_->fd()); }
  const std::string& why_closed() const { return why_; }  // the last time

 private:
  void dial();
  void dial_later(const Error& why);

  Loop& loop_;
  const Address coordinator_;
  const std::string token_;
  const Callbacks callbacks_;
  std::unique_ptr<ControlSocket> socket_;
  std::optional<Loop::TimerId> retry_;
  Duration retry_after_;
  std::string why_;
};

}  // namespace pliant
