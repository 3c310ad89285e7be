// All transports of a process behind one: the peers of this host by shared memory, the others by
// TCP; or everybody by TCP. Owned by one loop.
#pragma once

#include <memory>
#include <string>

#include "pliant/transport/shm/transport.h"
#include "pliant/transport/tcp/transport.h"

namespace pliant {

struct TransportOptions {
  PeerId self;
  std::string job;
  std::string token;
  Epoch epoch = Epoch{1};
  bool use_shm = true;
  bool use_tcp = true;
  std::string address = "127.0.0.1";  // where TCP listens
  size_t connections = 2;
  Duration silence_max = kSilenceMax;  // of a TCP connection, see socket.h
};

class Transports final : public Transport {
 public:
  // `segment` is needed with use_shm. Borrowed, as are loop and sink.
  static Result<std::unique_ptr<Transports>> open(Loop& loop, Sink& sink, Segment* segment,
                                                  const TransportOptions& options);

  // Fills in how others reach this process: address, port, local_name.
  void describe_self(Member& member) const;
  ShmTransport* shm() { return shm_.get(); }

  void add_peer(const Member& member) override;
  void send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie) override;
  void forget(std::span<const std::byte> memory) override;
  bool poll() override;
  bool linked(PeerId peer) const override;
  const char* name() const override { return "shm and tcp"; }

 private:
  explicit Transports(const TransportOptions& options) : options_(options) {}
  Transport& to(PeerId peer) const;

  const TransportOptions options_;
  std::unique_ptr<ShmTransport> shm_;
  std::unique_ptr<TcpTransport> tcp_;
};

}  // namespace pliant
