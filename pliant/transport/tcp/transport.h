// Messages over TCP.
//
// Each direction of a pair has its own connections: a sender dials the receiver at its first send,
// `connections` times, and Frame::stream chooses among them; the receiver never writes, except for
// its answer to the hello. So either end learns of the other's end by a closed socket, and bytes
// that a leaving peer had sent are still read. The first sign of a loss closes our side; the peer's
// connections are read to their end, and then it is lost. A lost peer stays lost: it is refused if
// it dials again, for its replacement has another PeerId.
//
// Owned by whoever opens it; made, called and destroyed with the loop held, and not destroyed from
// inside a Sink callback. lost() comes from the loop's turn, never inside send(); sent() may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pliant/loop/loop.h"
#include "pliant/transport/handshake.h"
#include "pliant/transport/socket.h"
#include "pliant/transport/tcp/inbound.h"
#include "pliant/transport/tcp/listener.h"
#include "pliant/transport/tcp/outbound.h"
#include "pliant/transport/transport.h"

namespace pliant {

class TcpTransport final : public Transport {
 public:
  struct Options {
    PeerId self;
    std::string job;
    std::string token;  // kTokenBytesMin or more; never logged
    Epoch epoch = Epoch{1};
    size_t connections = 2;             // to each peer
    std::string address = "127.0.0.1";  // to listen on; numeric
    uint16_t port = 0;                  // 0: any free one
    // From the first send to an accepted handshake, redials included.
    Duration connect_deadline = std::chrono::seconds(10);
    // For a stranger to prove itself.
    Duration handshake_deadline = std::chrono::seconds(5);
    size_t strangers_max = 64;
    // Without an acknowledgement for so long, a peer is lost.
    Duration silence_max = kSilenceMax;
    // How long the last bytes of a leaving peer are waited for. They are in this host's memory, or
    // close, when its process ended; an alive peer that we gave up on would go on sending.
    Duration leaving_deadline = std::chrono::milliseconds(200);
  };

  static Result<std::unique_ptr<TcpTransport>> open(Loop& loop, Sink& sink, Options options);
  ~TcpTransport() override;

  uint16_t port() const { return port_; }

  void add_peer(const Member& member) override;
  void send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie) override;
  void forget(std::span<const std::byte> memory) override;
  bool poll() override { return false; }  // the loop watches the descriptors
  bool linked(PeerId peer) const override;
  const char* name() const override { return "tcp"; }

 private:
  struct Peer {
    PeerId id;
    Result<Address> address = invalid("no address is known for it");
    std::vector<std::unique_ptr<Outbound>> outbound;  // by connection; null until needed
    std::vector<std::unique_ptr<Inbound>> inbound;
    // The first sign of its loss; from then on its inbound connections are read to their end.
    std::optional<Error> leaving;
    std::optional<Loop::TimerId> leaving_timer;
    bool sent_to = false;
    bool lost = false;
  };

  TcpTransport(Loop& loop, Sink& sink, Options options, Fd socket, uint16_t port);
  Peer& peer(PeerId id);
  Outbound& outbound(Peer& peer, uint8_t stream);
  void welcome(const Hello& hello, Fd connection);
  void on_inbound_end(Peer& peer, Inbound* link, Inbound::End how, const Error& error);
  void leave(Peer& peer, const Error& error);
  void lose(Peer& peer, const Error& error);

  Loop& loop_;
  Sink& sink_;
  const Options options_;
  const uint16_t port_;
  std::vector<std::byte> scratch_;          // of all inbound connections
  std::unordered_map<PeerId, Peer> peers_;  // never erased: a lost peer is remembered
  std::unique_ptr<Listener> listener_;
};

}  // namespace pliant
