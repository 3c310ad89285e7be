#include "pliant/transport/tcp/transport.h"

#include <fmt/format.h>

#include <algorithm>

namespace pliant {
namespace {
constexpr size_t kScratchBytes = size_t{64} << 10;
}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::open(Loop& loop, Sink& sink, Options options) {
  if (options.token.size() < kTokenBytesMin || options.token.size() > kTokenBytesMax)
    return invalid(
        fmt::format("a job's token has {} to {} characters", kTokenBytesMin, kTokenBytesMax));
  if (options.job.empty() || options.job.size() > kJobBytesMax)
    return invalid(fmt::format("a job's name has 1 to {} characters", kJobBytesMax));
  if (options.self == PeerId{}) return invalid("a transport needs the PeerId of its own peer");
  if (options.connections < 1 || options.connections > kStreamsMax)
    return invalid(
        fmt::format("{} connections to a peer: choose 1 to {}", options.connections, kStreamsMax));
  const Result<Address> address = parse_address(options.address, options.port);
  if (!address.ok()) return address.error();
  Result<Fd> socket = listen_tcp(*address, options.silence_max);
  if (!socket.ok()) return socket.error();
  const Result<Address> bound = local_address(*socket);
  if (!bound.ok()) return bound.error();
  return std::unique_ptr<TcpTransport>(
      new TcpTransport(loop, sink, std::move(options), std::move(*socket), bound->port()));
}

TcpTransport::TcpTransport(Loop& loop, Sink& sink, Options options, Fd socket, uint16_t port)
    : loop_(loop), sink_(sink), options_(std::move(options)), port_(port), scratch_(kScratchBytes) {
  listener_ = std::make_unique<Listener>(
      loop_, std::move(socket),
      Listener::Options{.expected = {options_.job, options_.token, options_.self},
                        .handshake_deadline = options_.handshake_deadline,
                        .strangers_max = options_.strangers_max},
      [this](const Hello& hello, Fd connection) { welcome(hello, std::move(connection)); });
}

TcpTransport::~TcpTransport() {
  loop_.assert_held();
  for (auto& [id, peer] : peers_) {
    if (peer.leaving_timer) loop_.cancel(*peer.leaving_timer);
  }
}

TcpTransport::Peer& TcpTransport::peer(PeerId id) {
  const auto [at, added] = peers_.try_emplace(id);
  if (added) at->second.id = id;
  return at->second;
}

void TcpTransport::add_peer(const Member& member) {
  loop_.assert_held();
  peer(member.id).address = parse_address(member.address, member.port);
}

void TcpTransport::send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
                        uint64_t cookie) {
  loop_.assert_held();
  PLIANT_CHECK(frame.payload_bytes == payload.size(), "a frame announces its payload");
  Peer& receiver = peer(to);
  if (receiver.lost || receiver.leaving) return;
  receiver.sent_to = true;
  if (!receiver.address.ok()) {
    return leave(receiver, {Code::kInvalid,
                            fmt::format("peer {} cannot be reached: {}", to_string(to),
                                        receiver.address.error().message),
                            to,
                            {}});
  }
  outbound(receiver, frame.stream).send(frame, payload, cookie);
}

bool TcpTransport::linked(PeerId peer) const {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.sent_to && !at->second.lost;
}

void TcpTransport::forget(std::span<const std::byte> memory) {
  loop_.assert_held();
  for (auto& [id, peer] : peers_) {
    for (const auto& link : peer.outbound) {
      if (link) link->forget(memory);
    }
    for (const auto& link : peer.inbound) link->forget(memory);
  }
}

Outbound& TcpTransport::outbound(Peer& peer, uint8_t stream) {
  if (peer.outbound.empty()) peer.outbound.resize(options_.connections);
  const size_t index = stream % options_.connections;
  std::unique_ptr<Outbound>& link = peer.outbound[index];
  if (!link) {
    link = std::make_unique<Outbound>(
        loop_, sink_,
        Outbound::Options{.address = *peer.address,
                          .hello = {.job = options_.job,
                                    .token = options_.token,
                                    .from = options_.self,
                                    .to = peer.id,
                                    .epoch = options_.epoch,
                                    .stream = static_cast<uint8_t>(index),
                                    .streams = static_cast<uint8_t>(options_.connections)},
                          .connect_deadline = options_.connect_deadline,
                          .silence_max = options_.silence_max},
        [this, &peer](const Error& error) { leave(peer, error); });
  }
  return *link;
}

void TcpTransport::welcome(const Hello& hello, Fd connection) {
  Peer& sender = peer(hello.from);
  const bool duplicate = std::any_of(sender.inbound.begin(), sender.inbound.end(),
                                     [&](const auto& l) { return l->stream() == hello.stream; });
  const Answer answer = sender.lost || sender.leaving ? Answer::kLost
                        : duplicate                   ? Answer::kDuplicate
                                                      : Answer::kAccepted;
  if (!Listener::answer(connection, answer) || answer != Answer::kAccepted) return;
  sender.inbound.push_back(std::make_unique<Inbound>(
      loop_, sink_, hello.from, hello.stream, std::move(connection), scratch_,
      [this, &sender](Inbound* link, Inbound::End how, const Error& error) {
        on_inbound_end(sender, link, how, error);
      }));
}

void TcpTransport::on_inbound_end(Peer& peer, Inbound* link, Inbound::End how, const Error& error) {
  if (how == Inbound::End::kRefused) return lose(peer, error);
  std::erase_if(peer.inbound, [&](const auto& other) { return other.get() == link; });
  leave(peer, error);
  if (peer.inbound.empty()) lose(peer, Error(*peer.leaving));
}

// The first sign of a loss. May be inside send(), therefore lost() comes from a timer at the
// earliest.
void TcpTransport::leave(Peer& peer, const Error& error) {
  if (peer.leaving || peer.lost) return;
  peer.leaving = error;
  peer.outbound.clear();
  const Instant when = peer.inbound.empty() ? now() : now() + options_.leaving_deadline;
  peer.leaving_timer = loop_.at(when, [this, &peer] {
    peer.leaving_timer.reset();
    // A last look, in case it was we who slept. Backwards, because a link may end and be erased.
    for (size_t i = peer.inbound.size(); i-- > 0 && !peer.lost;) peer.inbound[i]->read();
    lose(peer, Error(*peer.leaving));
  });
}

void TcpTransport::lose(Peer& peer, const Error& error) {
  if (peer.lost) return;
  peer.lost = true;
  if (peer.leaving_timer) loop_.cancel(*peer.leaving_timer);
  peer.leaving_timer.reset();
  peer.outbound.clear();
  peer.inbound.clear();
  sink_.lost(peer.id, error);
}

}  // namespace pliant
