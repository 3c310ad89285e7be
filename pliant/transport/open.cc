#include "pliant/transport/open.h"

namespace pliant {

Result<std::unique_ptr<Transports>> Transports::open(Loop& loop, Sink& sink, Segment* segment,
                                                     const TransportOptions& options) {
  PLIANT_CHECK(options.use_shm || options.use_tcp);
  std::unique_ptr<Transports> made(new Transports(options));
  if (options.use_shm) {
    PLIANT_CHECK(segment != nullptr);
    auto shm = ShmTransport::open(loop, sink, *segment,
                                  {.self = options.self,
                                   .job = options.job,
                                   .token = options.token,
                                   .epoch = options.epoch,
                                   .name = ""});
    if (!shm) return shm.error();
    made->shm_ = std::move(*shm);
  }
  if (options.use_tcp) {
    TcpTransport::Options tcp_options;
    tcp_options.self = options.self;
    tcp_options.job = options.job;
    tcp_options.token = options.token;
    tcp_options.epoch = options.epoch;
    tcp_options.connections = options.connections;
    tcp_options.silence_max = options.silence_max;
    tcp_options.address = options.address;
    auto tcp = TcpTransport::open(loop, sink, std::move(tcp_options));
    if (!tcp) return tcp.error();
    made->tcp_ = std::move(*tcp);
  }
  return made;
}

void Transports::describe_self(Member& member) const {
  if (shm_) member.local_name = shm_->local_name();
  if (tcp_) {
    member.address = options_.address;
    member.port = tcp_->port();
  }
}

Transport& Transports::to(PeerId peer) const {
  if (shm_ && (peer.host == options_.self.host || !tcp_)) return *shm_;
  return *tcp_;
}

void Transports::add_peer(const Member& member) { to(member.id).add_peer(member); }

void Transports::send(PeerId peer, const Frame& frame, std::span<const std::byte> payload,
                      uint64_t cookie) {
  to(peer).send(peer, frame, payload, cookie);
}

void Transports::forget(std::span<const std::byte> memory) {
  if (shm_) shm_->forget(memory);
  if (tcp_) tcp_->forget(memory);
}

bool Transports::poll() {
  const bool shm = shm_ && shm_->poll();
  const bool tcp = tcp_ && tcp_->poll();
  return shm || tcp;
}

bool Transports::linked(PeerId peer) const { return to(peer).linked(peer); }

}  // namespace pliant
