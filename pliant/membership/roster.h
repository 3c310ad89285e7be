// The membership of an elastic job: who is in the view, who may come in, who is lost, how many are
// wanted and where they start. Decisions only: events and the time go in, actions come out.
//
// handle() takes in what happened; decide() says what to do about all of it at once, so that many
// losses in one moment make one view. Epochs only grow, and a view is never taken back. Owned by
// the coordinator's job; one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/member.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/membership/departure.h"
#include "pliant/membership/places.h"
#include "pliant/membership/schedule.h"
#include "pliant/membership/view.h"

namespace pliant {

struct RosterOptions {
  static constexpr int kAnyNumber = -1;

  std::vector<PlaceHost> hosts;  // the index is PeerId::host
  uint32_t initial = 1;
  uint32_t min = 1;
  uint32_t max = 1;
  int restarts = 0;  // so many failed workers are replaced; kAnyNumber: all
  std::vector<ScheduledSize> schedule;
  PlacesOptions places;
  Duration heartbeat = std::chrono::seconds(2);
  Duration join_timeout = std::chrono::seconds(60);      // from the first to join to the first view
  Duration join_batch = std::chrono::milliseconds(200);  // from the first that is ready to its view
  Duration leave_timeout = std::chrono::seconds(30);     // from the view without it to SIGTERM
  Duration evict_after = std::chrono::seconds(10);       // from loss or SIGTERM to SIGKILL
  Duration end_wait = std::chrono::seconds(1);           // for the end of a lost member to be known
  Duration line_wait = std::chrono::seconds(1);          // for the numbers of the line of a change
  Duration proven_after = std::chrono::seconds(5);       // a member for so long is no crash loop
  Duration return_wait_min = std::chrono::seconds(2);    // for members after restore()
};

// What happened.
struct RosterEvent {
  struct HostReady {
    uint32_t host = 0;
    std::string notice = {};  // why it will be taken away; empty: it will not
  };
  struct HostRuns {  // told before HostReady by a host that was there before we were
    uint32_t host = 0;
    std::vector<PeerId> peers;
  };
  struct HostGone {
    uint32_t host = 0;
    std::string reason;
  };
  struct Joined {
    Member member;
    uint32_t epoch = 0;  // not 0: a member of this view that comes back
  };
  struct Met {
    PeerId peer;
    std::vector<PeerId> peers;
  };
  struct Alive {
    PeerId peer;
  };
  struct Left {  // in order, by its own will
    PeerId peer;
  };
  struct Disconnected {
    PeerId peer;
  };
  struct Died {  // for sure; Exited follows
    PeerId peer;
  };
  struct Exited {
    PeerId peer;
    int32_t pid = 0;
    int32_t exit_code = 0;
    std::string reason;  // "was killed by signal 9 (Killed)"
  };
  struct Suspected {  // one member cannot reach another
    PeerId by;
    PeerId peer;
    std::string reason;
  };
  struct Progress {
    uint64_t step = 0;
    uint64_t samples = 0;
  };
  struct Proposal {
    PeerId by;
    uint32_t size = 0;
  };
  struct Recovered {
    uint32_t epoch = 0;
    uint64_t step = 0;
    Duration agree{};
    Duration redo{};
    Duration transfer{};
    uint64_t transfer_bytes = 0;
    bool incomplete = false;  // newcomers still wait for the state
  };
  // This worker, or without a slot the whole host, will be taken away; told once or again.
  struct Notice {
    uint32_t host = 0;
    std::optional<uint16_t> slot;
    std::string reason;
  };
  struct Overslept {};  // we did not run for a while; perhaps nobody did, and word is on its way
  struct Ending {};     // the job ends: nothing is started any more, and nobody is too few
  struct Tick {};       // time has passed
  using Any = std::variant<HostReady, HostRuns, HostGone, Joined, Met, Alive, Left, Disconnected,
                           Died, Exited, Suspected, Progress, Proposal, Recovered, Notice,
                           Overslept, Ending, Tick>;
};

// What to do about it, in this order.
struct RosterAction {
  struct Start {
    PeerId peer;
    uint32_t number = 0;  // for logs; unique and growing
  };
  struct Signal {
    PeerId peer;
    int signal = 0;
  };
  struct Publish {
    View view;
    std::vector<Departure> gone;
    std::vector<PeerId> to;  // the members, then those that leave; or one that comes back
  };
  struct Meet {
    std::vector<PeerId> to;
    std::vector<Member> members;
  };
  struct Pause {
    std::vector<PeerId> to;
    std::string reason;
  };
  struct Refuse {
    PeerId peer;
    Code code = Code::kInvalid;
    std::string reason;
  };
  struct Event {  // for those who watch the job: view, loss, leave, join, pause, resume, resize,
                  // ...
    std::string kind;
    std::string text;
    std::map<std::string, std::string> fields;
  };
  struct Say {  // one line for the user
    std::string text;
  };
  struct Finish {
    int exit_code = 0;
    std::string message;
  };
  using Any = std::variant<Start, Signal, Publish, Meet, Pause, Refuse, Event, Say, Finish>;
};

class Roster final {
 public:
  Roster(RosterOptions options, Instant now);

  // True if decide() is due; a heartbeat alone changes nothing.
  bool handle(const RosterEvent::Any& event, Instant now);
  std::vector<RosterAction::Any> decide(Instant now);
  // When a Tick is due at the latest.
  std::optional<Instant> next_deadline() const;
  // Members that will be lost for silence at this Tick unless word of them is waiting to be read.
  std::vector<PeerId> silent(Instant now) const;

  // Wishes; decide() is due after each that is granted. The last wish wins.
  Status resize(uint32_t size, Instant now);
  Status drain_host(const std::string& name, Instant now);
  Status drain_peer(PeerId peer, Instant now);

  // All that a coordinator needs to go on after its own end. Taken before a view is published.
  std::vector<std::byte> snapshot() const;
  static Result<Roster> restore(RosterOptions options, Bytes bytes, Instant now);

  const View& view() const { return view_; }
  uint32_t target() const { return target_; }
  uint64_t step() const { return step_; }
  uint64_t samples() const { return samples_; }
  const std::string& paused() const { return paused_; }  // why; empty: it is not
  bool finished() const { return finished_; }
  const RosterOptions& options() const { return options_; }
  // Workers that have not ended, members or not.
  size_t running() const { return workers_.size(); }

 private:
  struct Worker {
    uint32_t number = 0;
    int32_t pid = 0;
    // kOutside: started, and has not joined or has left by its own will. kCandidate: joined, not in
    // a view yet. kMember: in the newest view. kLeaving: asked to go. kLost: out, but its process
    // may still run.
    enum class Standing : uint8_t { kOutside, kCandidate, kMember, kLeaving, kLost };
    Standing standing = Standing::kOutside;
    Rank rank = -1;          // in the newest view; -1: it is not in it
    Member member;           // from its Join
    bool left = false;       // by its own will
    bool dismissed = false;  // was told to go before it was a member
    bool draining = false;   // goes with the next view that can do without it
    std::string drain_reason;
    bool noticed = false;  // will be taken away, whether the job can do without it or not
    bool told = false;     // by a signal of its own: another one would end it at once
    bool vacated = false;  // counts among the vacancies for that
    std::set<PeerId> met;
    Epoch met_view{};  // whose members it has all met; looked for once, for they may be many
    Instant heard{};
    bool excused = false;  // got more time since, for we were away ourselves
    std::optional<Instant> member_since;
    uint32_t member_epoch = 0;   // of its first view
    bool seasoned = false;       // it has the state of the program, and can give it to others
    std::optional<Instant> due;  // of the next signal
    int next_signal = 0;
    // A lost member counts as a failure once its end is known, or after a while without.
    std::optional<Instant> account_due;
    bool accounted = false;
    bool lost_before_end = false;  // when no worker had ended well yet: the job got over it
    bool forgiven = false;         // lost before the last wish, which knows of it: no vacancy
    bool returning = false;        // a member of before restore(), not heard of yet
  };
  using Standing = Worker::Standing;
  struct Failure {
    int exit_code = 0;
    std::string text;
  };
  struct Suspicion {
    PeerId by;
    PeerId peer;
    std::string reason;
    Instant due{};
  };
  // A change of the view that its line has not been printed of.
  struct Change {
    struct Gone {
      PeerId peer;
      std::string who;  // by its rank in the view before
      std::string reason;
      bool planned = false;
      bool quiet = false;   // left by its own will: not worth a line at the end of the program
      bool final_ = false;  // the reason will not become better
    };
    std::vector<Gone> gone;
    std::vector<std::string> joined;
    Epoch epoch{};
    Rank size = 0;
    Instant due{};
    std::optional<RosterEvent::Recovered> numbers;
  };

  void on(const RosterEvent::HostReady& event, Instant now);
  void on(const RosterEvent::HostRuns& event, Instant now);
  void on(const RosterEvent::HostGone& event, Instant now);
  void on(const RosterEvent::Joined& event, Instant now);
  void on(const RosterEvent::Met& event, Instant now);
  void on(const RosterEvent::Alive& event, Instant now);
  void on(const RosterEvent::Left& event, Instant now);
  void on(const RosterEvent::Disconnected& event, Instant now);
  void on(const RosterEvent::Died& event, Instant now);
  void on(const RosterEvent::Exited& event, Instant now);
  void on(const RosterEvent::Suspected& event, Instant now);
  void on(const RosterEvent::Progress& event, Instant now);
  void on(const RosterEvent::Proposal& event, Instant now);
  void on(const RosterEvent::Recovered& event, Instant now);
  void on(const RosterEvent::Notice& event, Instant now);
  void on(const RosterEvent::Overslept& event, Instant now);
  void on(const RosterEvent::Ending& event, Instant now);
  void on(const RosterEvent::Tick& event, Instant now);

  // roster.cc
  bool notice_worker(Worker& worker, const RosterEvent::Notice& notice);
  void welcome_back(Worker& worker, const RosterEvent::Joined& event, Instant now);
  void lose(PeerId peer, Worker& worker, bool ended, const std::string& reason, Instant now);
  void account_end(PeerId peer, const RosterEvent::Exited& end, Instant now);
  void retire();
  Status set_target(uint32_t size);
  void fail(PeerId peer, Worker& worker, const Failure& failure, Instant now);
  void refuse(PeerId peer, Code code, std::string reason);
  void ask_to_go(PeerId peer, Worker& worker, Instant due, int signal);
  std::string name_of(PeerId peer, const Worker& worker) const;
  Worker* find(PeerId peer);
  bool in_view(PeerId peer) const;
  void event(std::string kind, std::string text, std::map<std::string, std::string> fields = {});

  // roster_decide.cc
  void act_on_time(Instant now);
  void lose_silent(Instant now);
  void forget_suspicions(const std::function<bool(const Suspicion&)>& which);
  void dismiss_superfluous(Instant now);
  void dismiss(PeerId peer, Worker& worker, Instant now);
  void first_view(Instant now);
  void next_view(Instant now);
  std::vector<PeerId> joining(const std::vector<PeerId>& stay, size_t room, Instant now);
  bool any_seasoned(const std::vector<PeerId>& peers, Instant now) const;
  std::vector<PeerId> ready_candidates(const std::vector<PeerId>& stay);
  bool has_met(Worker& worker, const std::vector<PeerId>& stay) const;
  void publish(const std::vector<PeerId>& members, Instant now);
  Departure depart(PeerId peer, Instant now);
  bool release_noticed(Instant now);
  bool somebody_comes() const;
  void pause(const std::vector<PeerId>& stay);
  void start_wanted(Instant now);
  void finish_if_over();
  bool is_over() const;
  bool is_closing() const;
  uint32_t min_now() const;
  size_t wanted() const;
  size_t counted() const;
  size_t needed() const;

  // roster_lines.cc
  void print_changes(Instant now);
  static std::string line_of(const Change& change);

  RosterOptions options_;
  Places places_;
  View view_;  // the newest; epoch 0: none yet
  std::map<PeerId, Worker> workers_;
  uint32_t next_number_ = 0;
  uint32_t target_;
  uint32_t vacancies_ = 0;  // failed workers that are not replaced; until the next wish
  uint32_t retired_ = 0;    // workers on which the program ended by its own will
  int restarts_left_;
  size_t schedule_next_ = 0;
  uint64_t step_ = 0;  // the last that was reported, and the samples up to it
  uint64_t samples_ = 0;
  bool started_ = false;  // the initial workers were
  bool ending_ = false;
  bool finished_ = false;
  bool republish_ = false;  // the view is right, its number is not
  std::string paused_;
  std::map<PeerId, Departure> departed_;           // since the newest view
  std::multiset<Instant> replacements_;            // when those of failed workers may start
  std::optional<Instant> join_due_;                // of the first view
  std::optional<Instant> batch_due_;               // of the next view with newcomers
  std::vector<Suspicion> suspicions_;              // in the order of their coming
  std::set<std::pair<PeerId, PeerId>> suspected_;  // of them, by whom and whom
  std::vector<Change> changes_;
  bool ended_well_ = false;  // some worker ended by its own will
  std::optional<Failure> last_failure_;
  std::optional<Failure> failed_at_end_;  // after some worker had ended well
  std::optional<Failure> hopeless_;       // the program never came up
  std::optional<Failure> revoked_;        // all members were told to leave

  std::vector<RosterAction::Any> actions_;  // until decide() hands them out
  Instant decided_{};                       // what was due by then has been dealt with
};

}  // namespace pliant
