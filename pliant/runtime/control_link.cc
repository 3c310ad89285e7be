#include "pliant/runtime/control_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace pliant {
namespace {

constexpr Duration kRetryAfterMax = std::chrono::milliseconds(500);
// The coordinator has the same deadline and knows who is missing: its answer is worth a moment.
constexpr Duration kAnswerWaitMax = std::chrono::seconds(2);

}  // namespace

Result<std::unique_ptr<ControlLink>> ControlLink::join(Loop& loop, const SessionOptions& options,
                                                       const Member& self) {
  const auto address = parse_endpoint(options.coordinator);
  if (!address) return address.error();
  const std::lock_guard guard(loop);
  std::unique_ptr<ControlLink> link(new ControlLink(loop, *address, options.token, self));
  const Instant deadline =
      now() + options.join_timeout + std::min<Duration>(options.join_timeout, kAnswerWaitMax);
  link->dial();
  while (link->state_ == State::kJoining && link->refused_.ok()) {
    const Duration left = deadline - now();
    if (left <= Duration(0)) {
      const std::string why =
          link->unreachable_.ok() ? "it does not answer" : link->unreachable_.error().message;
      return Error{Code::kTimeout,
                   fmt::format("could not join the job at {} within {}: {}", options.coordinator,
                               human_duration(options.join_timeout), why),
                   {},
                   {}};
    }
    loop.unlock();
    loop.wait(left);
    loop.lock();
    loop.turn();
  }
  if (!link->refused_.ok()) return link->refused_.error();
  return link;
}

ControlLink::ControlLink(Loop& loop, Address coordinator, std::string token, Member self)
    : loop_(loop), coordinator_(coordinator), token_(std::move(token)), self_(std::move(self)) {}

ControlLink::~ControlLink() {
  loop_.assert_held();
  if (retry_) loop_.cancel(*retry_);
}

void ControlLink::dial() {
  retry_.reset();
  auto fd = connect_tcp(coordinator_);
  if (!fd) {
    on_closed(fd.error());
    return;
  }
  socket_ = std::make_unique<ControlSocket>(
      loop_, std::move(*fd), ControlSocket::State::kConnecting, kControlBytesMax,
      ControlSocket::Callbacks{[this](const Message& message) { on_message(message); },
                               [this](const Error& error) { on_closed(error); }});
  socket_->send(Greeting{kControlVersion, token_});
  socket_->send(Join{self_});
}

void ControlLink::on_message(const Message& message) {
  if (const auto* decided = std::get_if<ViewDecided>(&message)) {
    if (state_ != State::kJoining || decided->view.rank_of(self_.id) < 0) return;
    view_ = decided->view;
    state_ = State::kMember;
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    if (state_ == State::kJoining)
      refused_ = Error{refused->code, "the coordinator refused: " + refused->reason, {}, {}};
  } else if (const auto* lost = std::get_if<PeerLost>(&message)) {
    if (!watching_) {
      untold_.push_back(*lost);
    } else {
      callbacks_.on_lost(lost->peer, {Code::kPeerLost, lost->reason, lost->peer, view_.epoch});
    }
  }
}

void ControlLink::on_closed(const Error& error) {
  if (state_ == State::kJoining) {
    unreachable_ = error;
    retry_ = loop_.at(now() + retry_after_, [this] { dial(); });
    retry_after_ = std::min(2 * retry_after_, kRetryAfterMax);
    return;
  }
  gone_ = error;
  if (watching_) callbacks_.on_coordinator_gone(error);
}

void ControlLink::watch(Callbacks callbacks) {
  loop_.assert_held();
  callbacks_ = std::move(callbacks);
  watching_ = true;
  for (const PeerLost& lost : std::exchange(untold_, {})) on_message(lost);
  if (!gone_.ok()) callbacks_.on_coordinator_gone(gone_.error());
}

void ControlLink::report_lost(PeerId peer, std::string_view reason) {
  loop_.assert_held();
  socket_->send(PeerLost{peer, std::string(reason)});
}

void ControlLink::leave() {
  loop_.assert_held();
  socket_->send(Leave{});
}

}  // namespace pliant
