// A worker's line to the coordinator: joins the job, is told of lost members and of new views,
// leaves.
//
// Owned by the Session. Everything except join() is called, and every callback runs, with the loop
// held; so is the destructor. Losing the coordinator does not disturb a running job; the line of an
// elastic one is dialled again until it answers.
#pragma once

#include <time.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/member.h"
#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/membership/view.h"
#include "pliant/runtime/control_socket.h"
#include "pliant/runtime/options.h"

namespace pliant {

class ControlLink final {
 public:
  struct Callbacks {
    // A member of the view is gone; the error is kPeerLost and carries peer, epoch and reason.
    std::function<void(PeerId, const Error&)> on_lost = {};
    // No more losses will be told, at least for a while; peers still see each other's.
    std::function<void(const Error&)> on_coordinator_gone = {};
    // Of elastic jobs: another view than that of join(); this member may be missing from it.
    std::function<void(const ViewDecided&)> on_view = {};
    // These may become members: make them reachable, then call met().
    std::function<void(const std::vector<Member>&)> on_meet = {};
    std::function<void(const std::string& reason)> on_paused = {};
    // The coordinator does not count this member in any more.
    std::function<void(const Error&)> on_out = {};
  };

  // Connects to options.coordinator (again and again until it answers), presents `self` (whose id
  // is options.self) and returns when all members are there, or after options.join_timeout with an
  // error that names the missing. Called without the loop held and before any other thread turns
  // it: it turns the loop itself, so a transport that listens on it is served meanwhile.
  // Of an elastic job that runs already it returns as soon as it is known whom to meet: a
  // candidate, and the view is still to come, by on_view.
  static Result<std::unique_ptr<ControlLink>> join(Loop& loop, const SessionOptions& options,
                                                   const Member& self);
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  const View& view() const { return view_; }
  bool candidate() const { return state_ == State::kCandidate; }

  // Once, soon after join(): what was told in between is called back before it returns.
  void watch(Callbacks callbacks);

  // Tells the coordinator whom this member cannot reach any more, so that the root of a failure is
  // named and not the first that suffered from it. Cheap; call it before the error surfaces.
  void report_lost(PeerId peer, std::string_view reason);

  // True if this process has not shown that it runs for so long that it may have been taken for
  // lost: it was stopped. What the coordinator has said meanwhile is handled before it returns. Any
  // thread asks first, without the loop; then with it.
  bool overslept() const {
    // A coarse clock will do, and costs a fifth of a fine one: this is asked after every step.
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    const int64_t now_ns = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    return now_ns > awake_until_ns_.load(std::memory_order_acquire);
  }
  void hear_now();

  // These peers are reachable now.
  void met(std::vector<PeerId> peers);
  // Progress, Proposal or Recovered; dropped while the coordinator is away.
  void tell(const Message& message);

  // This member ends in order: its closed connection is no loss. Then destroy it.
  void leave();

 private:
  // Until the coordinator has answered; then kMember for good. A candidate was told whom to meet
  // and waits for a view that includes it.
  enum class State { kJoining, kCandidate, kMember };

  ControlLink(Loop& loop, Address coordinator, const SessionOptions& options, Member self);
  void dial();
  void dial_later();
  void beat();
  void beat_now();
  void on_message(const Message& message);
  void take_view(const ViewDecided& decided);
  void take_change(const ViewChanged& changed);
  void on_closed(const Error& error);

  Loop& loop_;
  const Address coordinator_;
  const std::string token_;
  const bool elastic_;
  const Duration beat_every_;
  std::atomic<int64_t> awake_until_ns_;  // this process shows that it runs before that
  const Member self_;
  State state_ = State::kJoining;
  Status refused_;
  Status unreachable_;  // why the last attempt failed
  Duration retry_after_ = std::chrono::milliseconds(5);
  std::optional<Loop::TimerId> retry_;
  std::optional<Loop::TimerId> beat_;
  std::unique_ptr<ControlSocket> socket_;

  View view_;
  std::map<PeerId, std::string> suspects_;  // members of the view that this one cannot reach
  bool watching_ = false;
  std::vector<Message> untold_;
  Status gone_;  // why the coordinator is, if it is
  Callbacks callbacks_;
};

}  // namespace pliant
