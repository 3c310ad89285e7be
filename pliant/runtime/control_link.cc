#include "pliant/runtime/control_link.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "pliant/base/log.h"
#include "pliant/runtime/herald.h"

namespace pliant {
namespace {

constexpr Duration kRetryAfterMin = std::chrono::milliseconds(5);
constexpr Duration kRetryAfterMax = std::chrono::milliseconds(500);
// The coordinator has the same deadline and knows who is missing: its answer is worth a moment.
constexpr Duration kAnswerWaitMax = std::chrono::seconds(2);

}  // namespace

Result<std::unique_ptr<ControlLink>> ControlLink::join(Loop& loop, const SessionOptions& options,
                                                       const Member& self) {
  const auto address = parse_endpoint(options.coordinator);
  if (!address) return address.error();
  const std::lock_guard guard(loop);
  std::unique_ptr<ControlLink> link(new ControlLink(loop, *address, options, self));
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

ControlLink::ControlLink(Loop& loop, Address coordinator, const SessionOptions& options,
                         Member self)
    : loop_(loop),
      coordinator_(coordinator),
      token_(options.token),
      elastic_(options.elastic),
      beat_every_(options.heartbeat / 4),
      self_(std::move(self)) {
  beat_now();
}

ControlLink::~ControlLink() {
  loop_.assert_held();
  if (retry_) loop_.cancel(*retry_);
  if (beat_) loop_.cancel(*beat_);
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
  socket_->send(Join{self_, number(view_.epoch)});
  // What was reported to a coordinator that has died since may never have been acted upon.
  for (const auto& [peer, reason] : suspects_) socket_->send(PeerLost{peer, reason});
  if (elastic_) beat();
}

void ControlLink::dial_later() {
  if (retry_) return;
  retry_ = loop_.at(now() + retry_after_, [this] { dial(); });
  retry_after_ = std::min(2 * retry_after_, kRetryAfterMax);
}

// Shows that this process runs; a stopped one cannot.
void ControlLink::beat() {
  if (beat_) loop_.cancel(*beat_);
  beat_ = loop_.at(now() + beat_every_, [this] {
    beat_.reset();
    // Before this process counts as awake, it must know what was decided while it slept.
    if (overslept()) hear_now();
    beat_now();
    socket_->send(Alive{});
    beat();
  });
}

void ControlLink::on_message(const Message& message) {
  if (const auto* meet = std::get_if<Meet>(&message); meet && state_ == State::kJoining) {
    state_ = State::kCandidate;
    view_ = {Epoch{}, meet->members};
    view_.members.push_back(self_);
  }
  if (state_ != State::kJoining && !watching_) {
    untold_.push_back(message);
    return;
  }
  if (const auto* decided = std::get_if<ViewDecided>(&message)) {
    take_view(*decided);
  } else if (const auto* changed = std::get_if<ViewChanged>(&message)) {
    take_change(*changed);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    const Error error{refused->code, "the coordinator refused: " + refused->reason, {}, {}};
    if (state_ == State::kJoining) refused_ = error;
    if (state_ != State::kJoining && callbacks_.on_out) callbacks_.on_out(error);
  } else if (const auto* lost = std::get_if<PeerLost>(&message)) {
    if (state_ == State::kMember)
      callbacks_.on_lost(lost->peer, {Code::kPeerLost, lost->reason, lost->peer, view_.epoch});
  } else if (const auto* meet = std::get_if<Meet>(&message)) {
    if (callbacks_.on_meet) callbacks_.on_meet(meet->members);
  } else if (const auto* paused = std::get_if<Paused>(&message)) {
    if (state_ == State::kMember && callbacks_.on_paused) callbacks_.on_paused(paused->reason);
  }
}

void ControlLink::take_view(const ViewDecided& decided) {
  retry_after_ = kRetryAfterMin;
  if (decided.view.epoch <= view_.epoch) return;
  const bool included = decided.view.rank_of(self_.id) >= 0;
  const bool first = state_ == State::kJoining;
  if (state_ != State::kMember && !included) return;
  view_ = decided.view;
  state_ = State::kMember;
  std::erase_if(suspects_, [&](const auto& entry) { return view_.rank_of(entry.first) < 0; });
  if (!first && callbacks_.on_view) callbacks_.on_view(decided);
}

void ControlLink::take_change(const ViewChanged& changed) {
  // Only a member holds a view, and one that is known already is no news.
  if (state_ != State::kMember || changed.delta.epoch <= view_.epoch) return;
  const auto decided = complete(changed, view_);
  if (decided) return take_view(*decided);
  // Nothing is guessed: the whole is asked for. A new line would look like a loss.
  log(LogLevel::kWarning, decided.error().message);
  socket_->send(Join{self_, number(view_.epoch)});
}

void ControlLink::on_closed(const Error& error) {
  if (beat_) loop_.cancel(*beat_);
  beat_.reset();
  if (state_ == State::kJoining) {
    unreachable_ = error;
    return dial_later();
  }
  if (elastic_) dial_later();
  const bool first = gone_.ok();
  gone_ = error;
  if (watching_ && first) callbacks_.on_coordinator_gone(error);
}

void ControlLink::watch(Callbacks callbacks) {
  loop_.assert_held();
  callbacks_ = std::move(callbacks);
  watching_ = true;
  for (const Message& message : std::exchange(untold_, {})) on_message(message);
  if (!gone_.ok()) callbacks_.on_coordinator_gone(gone_.error());
}

// Half the time after which the coordinator would give up, since the coarse clock may lag by some
// milliseconds.
void ControlLink::beat_now() {
  const Instant until = now() + 2 * beat_every_;
  awake_until_ns_.store(until.time_since_epoch().count(), std::memory_order_release);
}

void ControlLink::hear_now() {
  loop_.assert_held();
  if (socket_ && socket_->open()) socket_->read_now();
}

void ControlLink::met(std::vector<PeerId> peers) { tell(Met{std::move(peers)}); }

void ControlLink::tell(const Message& message) {
  loop_.assert_held();
  socket_->send(message);
}

void ControlLink::report_lost(PeerId peer, std::string_view reason) {
  loop_.assert_held();
  if (elastic_) suspects_.emplace(peer, reason);
  socket_->send(PeerLost{peer, std::string(reason)});
}

void ControlLink::leave() {
  loop_.assert_held();
  socket_->send(Leave{});
}

}  // namespace pliant
