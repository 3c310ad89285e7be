#include "pliant/runtime/store_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "pliant/transport/handshake.h"

namespace pliant {

// One line to the store, from its hello to its end.
class StoreClient::Call final {
 public:
  static Result<std::unique_ptr<Call>> open(const StoreClient& client, Instant deadline,
                                            int cancel = -1) {
    auto socket = connect_local(client.place_.name, LocalKind::kStream);
    if (!socket)
      return Error{Code::kPeerLost,
                   "the store of this host cannot be reached: " + socket.error().message,
                   {},
                   {}};
    std::unique_ptr<Call> call(new Call(std::move(*socket), deadline, cancel));
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
    return invalid("the store answers with something else than was asked for");
  }

 private:
  Call(Fd socket, Instant deadline, int cancel)
      : line_(std::move(socket)), deadline_(deadline), cancel_(cancel) {}

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
      return invalid(fmt::format("the store of this host refused: {}", to_string(*answer)));
    line_.skip_raw(kAnswerBytes);
    return {};
  }

  // Sends and receives something.
  Status move_on() {
    const auto flushed = line_.flush();
    if (!flushed) return flushed.error();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - now());
    std::array<pollfd, 2> entries = {
        pollfd{line_.socket().get(), static_cast<short>(*flushed ? POLLIN : POLLIN | POLLOUT), 0},
        pollfd{cancel_, POLLIN, 0}};
    const int ready = left.count() <= 0
                          ? 0
                          : poll(entries.data(), entries.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return system_error("cannot wait for the store");
    if (ready == 0)
      return Error{Code::kTimeout, "the store of this host did not answer in time", {}, {}};
    if (ready < 0) return {};
    if (entries[1].revents != 0) return Error{Code::kCancelled, "the session ends", {}, {}};
    if ((entries[0].revents & ~POLLOUT) == 0) return {};
    const size_t before = line_.waiting_bytes();
    Status filled = line_.fill();
    // The last words of an end that has hung up are heard first.
    if (!filled.ok() && filled.code() == Code::kPeerLost && line_.waiting_bytes() > before)
      return {};
    return filled;
  }

  StoreLine line_;
  const Instant deadline_;
  const int cancel_;
};

StoreClient::StoreClient(StorePlace place, PeerId self) : place_(std::move(place)), self_(self) {}

Status StoreClient::hand_over(const store::VaultTicket& ticket, const store::VaultPart& part,
                              Instant deadline, int cancel) const {
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

}  // namespace pliant
