#include "pliant/runtime/store_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "pliant/runtime/store_copies.h"
#include "pliant/transport/handshake.h"

namespace pliant {
namespace {

// Elements may take as long as they need; without any for so long the other host is given up.
constexpr Duration kStillMax = std::chrono::seconds(20);
constexpr size_t kChunkBytes = size_t{1} << 20;

}  // namespace

// One line to the store, from its hello to its end.
class StoreClient::Call final {
 public:
  static Result<std::unique_ptr<Call>> open(const StoreClient& client, Instant deadline,
                                            int cancel = -1) {
    const auto unreachable = [&](const Error& error) {
      return Error{Code::kPeerLost, client.name() + " cannot be reached: " + error.message, {}, {}};
    };
    auto socket = client.place_.endpoint.empty()
                      ? connect_local(client.place_.name, LocalKind::kStream)
                      : connect_remote(client.place_.endpoint);
    if (!socket) return unreachable(socket.error());
    std::unique_ptr<Call> call(new Call(std::move(*socket), client.name(), deadline, cancel));
    if (!client.place_.endpoint.empty()) {
      if (const auto ready = call->wait(POLLOUT); !ready) return ready.error();
      if (const Status there = connect_status(call->line_.socket()); !there.ok())
        return unreachable(there.error());
    }
    PLIANT_TRY(call->greet(client));
    return call;
  }

  StoreLine& line() { return line_; }

  Result<StoreFrame> next() {
    while (true) {
      auto frame = line_.next();
      if (!frame) return frame.error();
      if (frame->has_value()) return std::move(**frame);
      PLIANT_TRY(move_on());
    }
  }
  // The next frame if it is of this kind; the store's refusal if that is what came.
  Result<StoreFrame> next(StoreKind kind) {
    auto frame = next();
    if (!frame) return frame.error();
    if (frame->kind == kind) return frame;
    if (frame->kind == StoreKind::kOutcome) PLIANT_TRY(decode_outcome(frame->body));
    return invalid(who_ + " answers with something else than was asked for");
  }
  // The store's last word, or its leave to go on.
  Status outcome() {
    const auto frame = next(StoreKind::kOutcome);
    if (!frame) return frame.error();
    return decode_outcome(frame->body);
  }
  Status send_elements(const store::VaultPart& part) {
    const Bytes memory = part.memory->bytes();
    for (size_t offset = 0; offset < memory.size(); offset += kChunkBytes) {
      const Bytes chunk = memory.subspan(offset, std::min(kChunkBytes, memory.size() - offset));
      line_.send(StoreKind::kCopyBytes, {chunk.begin(), chunk.end()});
      PLIANT_TRY(flush());
    }
    return {};
  }
  // Sends all of it; the deadline moves with it.
  Status flush() {
    while (true) {
      deadline_ = std::max(deadline_, now() + kStillMax);
      const auto flushed = line_.flush();
      if (!flushed) return flushed.error();
      if (*flushed) return {};
      if (const auto ready = wait(POLLOUT); !ready) return ready.error();
    }
  }
  // The next frame of elements; the deadline moves with them.
  Result<StoreFrame> next_bytes() {
    deadline_ = std::max(deadline_, now() + kStillMax);
    return next(StoreKind::kCopyBytes);
  }

 private:
  Call(Fd socket, std::string who, Instant deadline, int cancel)
      : line_(std::move(socket)), who_(std::move(who)), deadline_(deadline), cancel_(cancel) {}

  static Result<Fd> connect_remote(const std::string& endpoint) {
    const auto address = parse_endpoint(endpoint);
    if (!address) return address.error();
    return connect_tcp(*address);
  }

  Status greet(const StoreClient& client) {
    Hello hello;
    hello.job = client.place_.job;
    hello.token = client.place_.token;
    // A command is no peer, but a hello has a sender.
    const PeerId command{.host = client.place_.host, .slot = 0, .incarnation = 1};
    hello.from = client.self_ == PeerId{} ? command : client.self_;
    hello.to = {.host = client.place_.host, .slot = 0, .incarnation = 0};
    line_.send_raw(encode(hello));
    while (line_.waiting_bytes() < kAnswerBytes) PLIANT_TRY(move_on());
    const auto answer = decode_answer(line_.peek_raw().first<kAnswerBytes>());
    if (!answer) return answer.error();
    if (*answer != Answer::kAccepted)
      return invalid(fmt::format("{} refused: {}", who_, to_string(*answer)));
    line_.skip_raw(kAnswerBytes);
    return {};
  }

  // What the line is ready for, of `events`; nothing if the wait was disturbed.
  Result<short> wait(short events) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - now());
    std::array<pollfd, 2> entries = {pollfd{line_.socket().get(), events, 0},
                                     pollfd{cancel_, POLLIN, 0}};
    const int ready = left.count() <= 0
                          ? 0
                          : poll(entries.data(), entries.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return system_error("cannot wait for the store");
    if (ready == 0) return Error{Code::kTimeout, who_ + " did not answer in time", {}, {}};
    if (ready < 0) return short{0};
    if (entries[1].revents != 0) return Error{Code::kCancelled, "the session ends", {}, {}};
    return entries[0].revents;
  }

  // Sends and receives something.
  Status move_on() {
    const auto flushed = line_.flush();
    if (!flushed) return flushed.error();
    const auto ready = wait(static_cast<short>(*flushed ? POLLIN : POLLIN | POLLOUT));
    if (!ready) return ready.error();
    if ((*ready & ~POLLOUT) == 0) return {};
    const size_t before = line_.waiting_bytes();
    Status filled = line_.fill();
    // The last words of an end that has hung up are heard first.
    if (!filled.ok() && filled.code() == Code::kPeerLost && line_.waiting_bytes() > before)
      return {};
    return filled;
  }

  StoreLine line_;
  const std::string who_;
  Instant deadline_;
  const int cancel_;
};

namespace {

// All of what another host has of a version.
Result<store::Version::Shared> fetch_all(const StoreClient& client, uint64_t step,
                                         Instant deadline) {
  const auto look = client.look(step, deadline);
  if (!look) return look.error();
  StorePull all{look->step, look->epoch, {}};
  uint32_t number = 0;
  for (const StoreOutline& part : look->parts) {
    if (!part.held) continue;
    for (uint32_t i = 0; i < part.manifest.pieces.size(); ++i) all.pieces.push_back({number, i});
    ++number;
  }
  auto part = client.pull(all, deadline);
  if (!part) return part.error();
  return store::Version::make(look->step, look->epoch, {std::move(*part)});
}

}  // namespace

std::string StoreClient::name() const {
  if (place_.endpoint.empty()) return "the store of this host";
  if (place_.host_name.empty()) return fmt::format("the store of host {}", place_.host);
  return fmt::format("the store of host '{}'", place_.host_name);
}

StoreClient::StoreClient(StorePlace place, PeerId self) : place_(std::move(place)), self_(self) {}

Status StoreClient::hand_over(const store::VaultTicket& ticket, const store::VaultPart& part,
                              Instant deadline, int cancel) const {
  if (!place_.endpoint.empty())
    return send_copy({place_.host, StoreCopy::Purpose::kOwn, {ticket.step, 0, 1}}, {&part, 1},
                     deadline, cancel);
  auto call = Call::open(*this, deadline, cancel);
  if (!call) return call.error();
  (*call)->line().send(StoreKind::kOffer, encode(StoreOffer{ticket, part.manifest}), part.memory);
  const auto outcome = (*call)->next(StoreKind::kOutcome);
  if (outcome) return decode_outcome(outcome->body);
  Error error = outcome.error();
  if (error.code == Code::kTimeout)
    error.message = fmt::format(
        "step {}: the version did not become complete in time; not all {} writers of this host "
        "have handed over their parts",
        ticket.step, ticket.writers);
  return error;
}

Result<store::Version::Shared> StoreClient::fetch(uint64_t step, Instant deadline) const {
  if (!place_.endpoint.empty()) return fetch_all(*this, step, deadline);
  auto call = Call::open(*this, deadline);
  if (!call) return call.error();
  (*call)->line().send(StoreKind::kAsk, encode_ask(step));
  const auto head = (*call)->next(StoreKind::kVersion);
  if (!head) return head.error();
  const auto about = decode_version(head->body);
  if (!about) return about.error();
  std::vector<store::VaultPart> parts;
  for (uint32_t i = 0; i < about->parts; ++i) {
    auto frame = (*call)->next(StoreKind::kPart);
    if (!frame) return frame.error();
    auto manifest = store::decode_manifest(frame->body);
    if (!manifest) return manifest.error();
    auto memory = store::VaultMemory::adopt(std::move(frame->memory), manifest->memory_bytes);
    if (!memory) return memory.error();
    parts.push_back({std::move(*manifest), std::move(*memory)});
  }
  return store::Version::make(about->step, about->epoch, std::move(parts));
}

Result<std::vector<StoreSummary>> StoreClient::list(Instant deadline) const {
  auto call = Call::open(*this, deadline);
  if (!call) return call.error();
  (*call)->line().send(StoreKind::kList, {});
  const auto frame = (*call)->next(StoreKind::kVersions);
  if (!frame) return frame.error();
  return decode_summaries(frame->body);
}

Result<std::vector<StorePeer>> StoreClient::hosts(Instant deadline) const {
  auto call = Call::open(*this, deadline);
  if (!call) return call.error();
  (*call)->line().send(StoreKind::kHosts, {});
  const auto frame = (*call)->next(StoreKind::kHostList);
  if (!frame) return frame.error();
  return decode_peers(frame->body);
}

Result<StoreLook> StoreClient::look(uint64_t step, Instant deadline) const {
  auto call = Call::open(*this, deadline);
  if (!call) return call.error();
  (*call)->line().send(StoreKind::kLook, encode_ask(step));
  const auto head = (*call)->next(StoreKind::kVersion);
  if (!head) return head.error();
  const auto about = decode_version(head->body);
  if (!about) return about.error();
  StoreLook look{about->step, about->epoch, {}};
  for (uint32_t i = 0; i < about->parts; ++i) {
    const auto frame = (*call)->next(StoreKind::kOutline);
    if (!frame) return frame.error();
    auto outline = decode_outline(frame->body);
    if (!outline) return outline.error();
    look.parts.push_back(std::move(*outline));
  }
  return look;
}

Result<store::VaultPart> StoreClient::pull(const StorePull& pieces, Instant deadline) const {
  auto call = Call::open(*this, deadline);
  if (!call) return call.error();
  (*call)->line().send(StoreKind::kPull, encode(pieces));
  const auto head = (*call)->next(StoreKind::kCopyPart);
  if (!head) return head.error();
  auto manifest = store::decode_manifest(head->body);
  if (!manifest) return manifest.error();
  PartReceiver receiver;
  PLIANT_TRY(receiver.begin(std::move(*manifest)));
  while (true) {
    const auto frame = (*call)->next_bytes();
    if (!frame) return frame.error();
    auto part = receiver.add(frame->body);
    if (!part) return part.error();
    if (!part->has_value()) continue;
    const auto version = store::Version::make(pieces.step, pieces.epoch, {**part});
    if (!version) return version.error();
    PLIANT_TRY((*version)->verify());
    return std::move(**part);
  }
}

Status StoreClient::send_copy(const StoreCopy& about, std::span<const store::VaultPart> parts,
                              Instant deadline, int cancel) const {
  auto call = Call::open(*this, deadline, cancel);
  if (!call) return call.error();
  StoreLine& line = (*call)->line();
  line.send(StoreKind::kCopy, encode(about));
  for (const store::VaultPart& part : parts) {
    line.send(StoreKind::kCopyPart, store::encode(part.manifest));
    // Another host's own store first says whether it takes it.
    if (about.purpose == StoreCopy::Purpose::kOwn) PLIANT_TRY((*call)->outcome());
    if (about.purpose != StoreCopy::Purpose::kOutline) PLIANT_TRY((*call)->send_elements(part));
  }
  PLIANT_TRY((*call)->flush());
  return (*call)->outcome();
}

}  // namespace pliant
