#include "pliant/transport/shm/transport.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "pliant/base/fence.h"
#include "pliant/base/log.h"
#include "pliant/transport/overlap.h"

namespace pliant {
namespace {
constexpr size_t kStrangersMax = 64;
constexpr Duration kRetryAfter = std::chrono::milliseconds(2);
constexpr Duration kDialAnyway = std::chrono::milliseconds(20);

std::string random_name() {
  std::array<uint64_t, 2> random{};
  PLIANT_CHECK(getrandom(random.data(), sizeof random, 0) == sizeof random);
  // The pid is for people who wonder whose it is.
  return fmt::format("pliant-{}-{:016x}{:016x}", getpid(), random[0], random[1]);
}
}  // namespace

Result<std::unique_ptr<ShmTransport>> ShmTransport::open(Loop& loop, Sink& sink, Segment& segment,
                                                         ShmOptions options) {
  if (options.self.slot >= kSlotsMax)
    return invalid(
        fmt::format("slot {} is too high: a host has at most {}", options.self.slot, kSlotsMax));
  std::unique_ptr<ShmTransport> made(new ShmTransport(loop, sink, segment, std::move(options)));
  made->name_ = made->options_.name.empty() ? random_name() : made->options_.name;
  auto listener = listen_local(made->name_, LocalKind::kPackets);
  if (!listener) return listener.error();
  made->listener_ = std::move(*listener);
  loop.watch(made->listener_.get(), EPOLLIN,
             [self = made.get()](uint32_t) { self->accept_waiting(); });
  return made;
}

ShmTransport::ShmTransport(Loop& loop, Sink& sink, Segment& segment, ShmOptions options)
    : loop_(loop), sink_(sink), own_(segment), options_(std::move(options)) {}

ShmTransport::~ShmTransport() {
  for (const Loop::TimerId timer : retries_) loop_.cancel(timer);
  for (auto& [fd, stranger] : strangers_) {
    loop_.cancel(stranger.deadline);
    loop_.unwatch(fd);
  }
  for (Link* link : order_)
    if (link->socket.valid()) loop_.unwatch(link->socket.get());
  if (listener_.valid()) loop_.unwatch(listener_.get());
}

// ---- Meeting ----------------------------------------------------------------------------------

Hello ShmTransport::hello_to(PeerId peer) const {
  Hello hello;
  hello.job = options_.job;
  hello.token = options_.token;
  hello.from = options_.self;
  hello.to = peer;
  hello.epoch = options_.epoch;
  return hello;
}

ShmTransport::Link* ShmTransport::find(PeerId peer) {
  const auto at = links_.find(peer);
  return at == links_.end() ? nullptr : at->second.get();
}

ShmTransport::Link& ShmTransport::add_link(PeerId peer) {
  auto& slot = links_[peer];
  if (slot == nullptr) {
    slot = std::make_unique<Link>();
    slot->peer = peer;
    // A replacement on the slot of a dead peer: what that one left in the ring is nobody's. The new
    // one cannot have written yet: it gets our segment after this.
    Ring& ring = own_.ring(peer.slot);
    ring.read.store(ring.written.load(std::memory_order_acquire), std::memory_order_release);
    order_.push_back(slot.get());
  }
  return *slot;
}

bool ShmTransport::linked(PeerId peer) const {
  const auto at = links_.find(peer);
  return at != links_.end() && (at->second->connected || at->second->sent_to) && !at->second->lost;
}

Segment* ShmTransport::segment_of(PeerId peer) {
  if (peer == options_.self) return &own_;
  const std::lock_guard guard(met_mutex_);
  const auto at = met_.find(peer);
  return at == met_.end() ? nullptr : at->second.segment;
}

void ShmTransport::connected(Link& link) {
  link.connected = true;
  const std::lock_guard guard(met_mutex_);
  met_[link.peer] = {link.segment.get(), link.socket.get()};
}

std::optional<PeerId> ShmTransport::owner_of(const std::byte* memory, size_t bytes) const {
  if (own_.contains(memory, bytes)) return options_.self;
  for (const Link* link : order_)
    if (link->segment && link->segment->contains(memory, bytes)) return link->peer;
  return std::nullopt;
}

void ShmTransport::drop_lost(std::span<const PeerId> kept) {
  loop_.assert_held();
  std::erase_if(order_, [&](Link* link) {
    const PeerId peer = link->peer;
    if (!link->lost || std::find(kept.begin(), kept.end(), peer) != kept.end()) return false;
    {
      const std::lock_guard guard(met_mutex_);
      met_.erase(peer);
    }
    // To unmap one takes up to tenths of a second, for which neither the loop nor who trains waits.
    // One too many goes at once.
    if (link->segment)
      (void)aside(
          [segment = std::shared_ptr(std::move(link->segment))]() mutable { segment.reset(); });
    links_.erase(peer);
    return true;
  });
}

bool ShmTransport::aside(std::function<void()> task) {
  loop_.assert_held();
  if (!aside_) aside_ = std::make_unique<TaskPool>(1, kSlotsMax);
  return aside_->submit(std::move(task));
}

void ShmTransport::add_peer(const Member& member) {
  loop_.assert_held();
  Link& link = add_link(member.id);
  if (link.connected || link.lost || link.socket.valid()) return;
  // Of two peers that know each other the later one dials, so that they meet once; the other only
  // does if it seems not to be known itself.
  const Instant give_up = now() + options_.handshake_deadline;
  if (options_.self > member.id) return dial(link, member.local_name, give_up);
  retry_dial(link, member.local_name, give_up, kDialAnyway);
}

void ShmTransport::dial(Link& link, const std::string& name, Instant give_up) {
  auto socket = connect_local(name, LocalKind::kPackets);
  const std::vector<std::byte> hello = encode(hello_to(link.peer));
  const int descriptor = own_.fd();
  auto sent =
      socket ? send_descriptors(*socket, hello, {&descriptor, 1}) : Result<size_t>(size_t{0});
  if (!socket || !sent || *sent == 0) {
    // Its listener may be busy, or not there yet.
    if (now() > give_up)
      return lose(link,
                  {Code::kPeerLost,
                   fmt::format("peer {} cannot be reached on this host: {}", to_string(link.peer),
                               socket ? "it does not answer" : socket.error().message),
                   link.peer, options_.epoch});
    return retry_dial(link, name, give_up, kRetryAfter);
  }
  link.socket = std::move(*socket);
  loop_.watch(link.socket.get(), EPOLLIN, [this, peer = link.peer](uint32_t) { on_socket(peer); });
}

void ShmTransport::retry_dial(Link& link, const std::string& name, Instant give_up,
                              Duration after) {
  retries_.push_back(loop_.at(now() + after, [this, peer = link.peer, name, give_up] {
    Link* known = find(peer);
    if (known != nullptr && !known->lost && !known->connected && !known->socket.valid())
      dial(*known, name, give_up);
  }));
}

void ShmTransport::accept_waiting() {
  while (true) {
    auto socket = accept_from(listener_);
    if (!socket || !socket->valid()) return;
    if (strangers_.size() >= kStrangersMax) continue;  // closed again at once
    const int fd = socket->get();
    const Loop::TimerId deadline =
        loop_.at(now() + options_.handshake_deadline, [this, fd] { drop_stranger(fd); });
    strangers_.emplace(fd, Stranger{std::move(*socket), deadline});
    loop_.watch(fd, EPOLLIN, [this, fd](uint32_t) { meet_stranger(fd); });
  }
}

void ShmTransport::drop_stranger(int fd) {
  const auto at = strangers_.find(fd);
  if (at == strangers_.end()) return;
  loop_.cancel(at->second.deadline);
  loop_.unwatch(fd);
  strangers_.erase(at);
}

void ShmTransport::meet_stranger(int fd) {
  Stranger& stranger = strangers_.at(fd);
  std::array<std::byte, kHelloBytesMax> room;
  auto received = receive_descriptors(stranger.socket, room);
  if (received && received->state == Received::State::kNothingYet) return;
  if (!received || received->state == Received::State::kClosed ||
      received->size_bytes < kHelloHeadBytes || received->descriptors.size() != 1)
    return drop_stranger(fd);
  const auto packet = std::span<const std::byte>(room).first(received->size_bytes);
  const auto head = decode_hello_head(packet.first<kHelloHeadBytes>());
  const auto hello =
      head ? decode_hello_body(packet.subspan(kHelloHeadBytes)) : Result<Hello>(head.error());
  if (!hello) return drop_stranger(fd);
  Answer answer =
      judge(*hello, {.job = options_.job, .token = options_.token, .self = options_.self});
  Link* known = answer == Answer::kAccepted ? find(hello->from) : nullptr;
  if (known != nullptr) {
    // If both dial at once, the later peer's connection counts.
    const bool ours_counts = known->socket.valid() && options_.self > hello->from;
    if (known->lost) answer = Answer::kLost;
    if (known->connected || ours_counts) answer = Answer::kDuplicate;
  }
  const int descriptor = own_.fd();
  const auto reply = encode(answer);
  const bool accepted = answer == Answer::kAccepted;
  auto sent =
      send_descriptors(stranger.socket, reply, {&descriptor, accepted ? size_t{1} : size_t{0}});
  if (!accepted && answer != Answer::kDuplicate)
    log(LogLevel::kWarning, fmt::format("refused a process on this host: {}", to_string(answer)));
  if (accepted && (!sent || *sent == 0))
    log(LogLevel::kInfo,
        fmt::format("peer {} went away while it connected", to_string(hello->from)));
  if (!accepted || !sent || *sent == 0) return drop_stranger(fd);
  auto segment = Segment::map(received->descriptors[0].release());
  Link& link = add_link(hello->from);
  if (!segment) return drop_stranger(fd);
  if (link.socket.valid()) loop_.unwatch(link.socket.get());
  // Unwatched while it is still open, and then the link's.
  loop_.cancel(stranger.deadline);
  loop_.unwatch(fd);
  Fd socket = std::move(stranger.socket);
  strangers_.erase(fd);
  link.segment = std::move(*segment);
  link.socket = std::move(socket);
  connected(link);
  loop_.watch(link.socket.get(), EPOLLIN, [this, peer = link.peer](uint32_t) { on_socket(peer); });
}

void ShmTransport::on_socket(PeerId peer) {
  Link& link = *find(peer);
  while (!link.lost) {
    std::array<std::byte, 64> room;
    auto received = receive_descriptors(link.socket, room);
    if (received && received->state == Received::State::kNothingYet) return;
    if (!received || received->state == Received::State::kClosed) {
      // What it wrote before it went away still counts.
      if (link.connected)
        while (pump_in(link)) {
        }
      return lose(link, {Code::kPeerLost, fmt::format("peer {} is gone", to_string(peer)), peer,
                         options_.epoch});
    }
    if (link.connected) continue;  // a wake-up: whoever turned the loop polls next
    const auto packet = std::span<const std::byte>(room).first(received->size_bytes);
    const auto answer = packet.size() == kAnswerBytes ? decode_answer(packet.first<kAnswerBytes>())
                                                      : Result<Answer>(invalid("a short answer"));
    if (answer && *answer == Answer::kDuplicate) {
      // It dials us as well; that connection counts.
      loop_.unwatch(link.socket.get());
      link.socket.reset();
      return;
    }
    auto segment = answer && *answer == Answer::kAccepted && received->descriptors.size() == 1
                       ? Segment::map(received->descriptors[0].release())
                       : Result<std::unique_ptr<Segment>>(
                             invalid(answer ? to_string(*answer) : "an answer that is none"));
    if (!segment)
      return lose(link,
                  {Code::kPeerLost,
                   fmt::format("peer {} refused us: {}", to_string(peer), segment.error().message),
                   peer, options_.epoch});
    link.segment = std::move(*segment);
    connected(link);
  }
}

void ShmTransport::lose(Link& link, Error error) {
  if (link.lost) return;
  link.lost = true;
  if (link.connected) {
    const std::lock_guard guard(met_mutex_);
    met_[link.peer].socket = -1;
  }
  if (link.socket.valid()) {
    loop_.unwatch(link.socket.get());
    link.socket.reset();
  }
  link.outgoing.clear();
  error.peer = link.peer;
  error.epoch = options_.epoch;
  sink_.lost(link.peer, error);
}

void ShmTransport::wake(PeerId peer) {
  const std::lock_guard guard(met_mutex_);
  const auto at = met_.find(peer);
  if (at == met_.end() || at->second.socket < 0) return;
  // Whoever clears the flag sends the one wake-up that is needed.
  if (at->second.segment->header().asleep.exchange(0, std::memory_order_acq_rel) == 0) return;
  const std::byte byte{1};
  // A full socket means that wake-ups are waiting there already.
  [[maybe_unused]] const auto sent =
      ::send(at->second.socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// ---- Messages ---------------------------------------------------------------------------------

void ShmTransport::send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
                        uint64_t cookie) {
  loop_.assert_held();
  Link* link = find(to);
  if (link == nullptr) {
    link = &add_link(to);
    // Not from inside send(): the caller is not prepared for it.
    retries_.push_back(loop_.at(now(), [this, to] {
      if (Link* unknown = find(to))
        lose(*unknown,
             {Code::kPeerLost, fmt::format("peer {} is not known on this host", to_string(to)), to,
              options_.epoch});
    }));
  }
  if (link->lost) return;
  link->sent_to = true;
  link->outgoing.push_back({frame, payload, {}, cookie, 0});
  if (link->outgoing.size() == 1 && !link->pumping) pump_out(*link);
}

void ShmTransport::forget(std::span<const std::byte> memory) {
  loop_.assert_held();
  for (Link* link : order_) {
    for (Outgoing& message : link->outgoing) {
      if (!overlap(message.payload, memory)) continue;
      // What was written of it stays written: the copy continues at the same byte.
      message.copy.assign(message.payload.begin(), message.payload.end());
      message.payload = message.copy;
    }
    Incoming& incoming = link->incoming;
    if (incoming.got < sizeof(Frame) || incoming.to == nullptr) continue;
    if (!overlap({incoming.to, incoming.frame.payload_bytes}, memory)) continue;
    incoming.waste.resize(incoming.frame.payload_bytes);
    incoming.to = incoming.waste.data();
  }
}

bool ShmTransport::poll() {
  loop_.assert_held();
  bool any = false;
  for (size_t i = 0; i < order_.size(); ++i) {
    Link& link = *order_[i];
    if (!link.connected || link.lost) continue;
    any |= pump_in(link);
    if (!link.lost && !link.outgoing.empty()) any |= pump_out(link);
  }
  return any;
}

// Copies as much of a message as the ring has room for; returns the bytes.
size_t ShmTransport::put(Ring& ring, Outgoing& message) {
  const size_t total = sizeof(Frame) + message.payload.size();
  uint64_t position = ring.written.load(std::memory_order_relaxed);
  const uint64_t limit = ring.read.load(std::memory_order_acquire) + kRingBytes;
  size_t copied = 0;
  while (message.written < total && position < limit) {
    const bool head = message.written < sizeof(Frame);
    const std::byte* from = head ? reinterpret_cast<const std::byte*>(&message.frame)
                                 : message.payload.data() - sizeof(Frame);
    const size_t left = (head ? sizeof(Frame) : total) - message.written;
    const size_t offset = position % kRingBytes;
    const size_t piece = std::min({left, limit - position, kRingBytes - offset});
    std::memcpy(ring.data + offset, from + message.written, piece);
    message.written += piece;
    position += piece;
    copied += piece;
  }
  ring.written.store(position, std::memory_order_release);
  return copied;
}

bool ShmTransport::pump_out(Link& link) {
  if (!link.connected) return false;
  Ring& ring = link.segment->ring(options_.self.slot);
  bool any = false;
  link.pumping = true;  // sent() may send: that is then taken in this loop
  while (!link.outgoing.empty()) {
    Outgoing& message = link.outgoing.front();
    any |= put(ring, message) > 0;
    if (message.written < sizeof(Frame) + message.payload.size()) {
      ring.sender_waits.store(1, std::memory_order_relaxed);
      break;
    }
    const uint64_t cookie = message.cookie;
    link.outgoing.pop_front();
    sink_.sent(cookie);
  }
  link.pumping = false;
  if (!any) return false;
  full_fence();
  if (link.segment->header().asleep.load(std::memory_order_relaxed) & kWakeForMessages)
    wake(link.peer);
  return true;
}

// Consumes some of [position, end); false if the peer was lost by it.
bool ShmTransport::take(Link& link, Ring& ring, uint64_t& position, uint64_t end) {
  Incoming& incoming = link.incoming;
  const size_t offset = position % kRingBytes;
  const size_t there = std::min<size_t>(end - position, kRingBytes - offset);
  if (incoming.got < sizeof(Frame)) {
    const size_t piece = std::min(there, sizeof(Frame) - incoming.got);
    std::memcpy(reinterpret_cast<std::byte*>(&incoming.frame) + incoming.got, ring.data + offset,
                piece);
    incoming.got += piece;
    position += piece;
    if (incoming.got < sizeof(Frame)) return true;
    std::array<std::byte, sizeof(Frame)> head;
    std::memcpy(head.data(), &incoming.frame, sizeof head);
    const auto frame = decode_frame(head);
    auto to = frame ? sink_.place(link.peer, *frame) : Result<std::byte*>(frame.error());
    if (!to) {
      lose(link, to.error());
      return false;
    }
    incoming.to = *to;
  } else {
    const size_t done = incoming.got - sizeof(Frame);
    const size_t piece = std::min<size_t>(there, incoming.frame.payload_bytes - done);
    std::memcpy(incoming.to + done, ring.data + offset, piece);
    incoming.got += piece;
    position += piece;
  }
  if (incoming.got < sizeof(Frame) + incoming.frame.payload_bytes) return true;
  // The ring's space is free before the sink runs: it may send, and so wait for the peer to read.
  ring.read.store(position, std::memory_order_release);
  const Frame frame = incoming.frame;
  std::byte* const payload = incoming.to;
  const std::vector<std::byte> waste = std::move(incoming.waste);
  incoming = {};
  if (waste.empty()) sink_.arrived(link.peer, frame, payload);
  return !link.lost;
}

bool ShmTransport::pump_in(Link& link) {
  Ring& ring = own_.ring(link.peer.slot);
  uint64_t position = ring.read.load(std::memory_order_relaxed);
  const uint64_t end = ring.written.load(std::memory_order_acquire);
  if (position == end) return false;
  while (position != end)
    if (!take(link, ring, position, end)) break;
  ring.read.store(position, std::memory_order_release);
  full_fence();
  if (ring.sender_waits.load(std::memory_order_relaxed) != 0) {
    ring.sender_waits.store(0, std::memory_order_relaxed);
    wake(link.peer);
  }
  return true;
}

}  // namespace pliant
