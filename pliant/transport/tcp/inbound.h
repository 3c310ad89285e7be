// One accepted connection from a proven peer, on which this end only receives.
//
// Heads, and small messages with them, are read ahead into a scratch buffer; the rest of a large
// payload goes straight to the place that the Sink gave. Owned by TcpTransport, driven by its loop.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "pliant/loop/loop.h"
#include "pliant/transport/socket.h"
#include "pliant/transport/transport.h"

namespace pliant {

class Inbound final {
 public:
  enum class End {
    kClosed,   // by the peer or the network: what came before is good
    kRefused,  // by us, because of what came: nothing more of this peer is wanted
  };
  // Called once, from the loop's turn or from read(); may destroy this object.
  using Ended = std::function<void(Inbound*, End, const Error&)>;

  // `scratch` is shared by all connections of a transport: nothing stays in it between reads.
  Inbound(Loop& loop, Sink& sink, PeerId from, uint8_t stream, Fd fd, std::span<std::byte> scratch,
          Ended ended);
  ~Inbound();
  Inbound(const Inbound&) = delete;
  Inbound& operator=(const Inbound&) = delete;

  uint8_t stream() const { return stream_; }
  // Reads what is there, up to a bound that leaves the other connections their turn.
  void read();
  // What is being received into this memory goes to waste: it is read, and never arrives.
  void forget(std::span<const std::byte> memory);

 private:
  std::optional<Error> parse(std::span<const std::byte> bytes);
  std::optional<Error> begin_message();
  void take(size_t size_bytes);
  void end(End how, const Error& error);

  Loop& loop_;
  Sink& sink_;
  const PeerId from_;
  const uint8_t stream_;
  const Fd fd_;
  const std::span<std::byte> scratch_;
  const Ended ended_;

  // Either a head is being filled (no payload is due), or the payload of frame_ is.
  std::array<std::byte, sizeof(Frame)> head_{};
  size_t head_filled_ = 0;
  Frame frame_;
  std::byte* place_ = nullptr;
  size_t payload_done_ = 0;
  size_t payload_left_ = 0;
  bool wasted_ = false;  // place_ was forgotten
};

}  // namespace pliant
