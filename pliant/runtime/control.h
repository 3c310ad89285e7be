// The messages between workers, agents and the coordinator, as values and as bytes.
//
// On the wire a message is its length (32 bit, little-endian) and its body: a type byte and the
// fields. Decoding checks every size before it allocates. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/ids.h"
#include "pliant/base/member.h"
#include "pliant/base/result.h"
#include "pliant/membership/departure.h"
#include "pliant/membership/view.h"
#include "pliant/membership/view_delta.h"

namespace pliant {

inline constexpr uint32_t kControlVersion = 3;

// A connection that has not proved the token yet can make us hold no more than this.
inline constexpr size_t kStrangerBytesMax = 1024;
// Enough for a view of kMembersMax members.
inline constexpr size_t kControlBytesMax = size_t{64} << 20;

// The first message of every connection: proves that the sender belongs to the job.
struct Greeting {
  uint32_t version = kControlVersion;
  std::string token;
  bool operator==(const Greeting&) const = default;
};

// Worker to coordinator, after Greeting: I am here and reached like this.
struct Join {
  Member member;
  // 0: new; else I am a member of this view, and the coordinator was away. Over a line that has
  // joined already it means that the newest view is needed as a whole.
  uint32_t epoch = 0;
  bool operator==(const Join&) const = default;
};

// Worker to coordinator: I end in order; my closed connection is no loss.
struct Leave {
  bool operator==(const Leave&) const = default;
};

// Coordinator to worker: these are the members now. An elastic job sends it to those that leave,
// too; they find themselves absent.
struct ViewDecided {
  View view;
  std::vector<Departure> gone;  // since the view before
  bool operator==(const ViewDecided&) const = default;
};

// Coordinator to worker, instead of ViewDecided, if the worker holds the view before (herald.h).
struct ViewChanged {
  ViewDelta delta;
  bool operator==(const ViewChanged&) const = default;
};

// Coordinator to anyone: no, and why. The connection closes after it. To one that was a member it
// means: you are out.
struct Refused {
  Code code = Code::kInvalid;
  std::string reason;
  bool operator==(const Refused&) const = default;
};

// Coordinator to worker: this member is gone. Worker to coordinator: I cannot reach this member.
struct PeerLost {
  PeerId peer;
  std::string reason;
  bool operator==(const PeerLost&) const = default;
};

// Agent to coordinator: a worker has ended.
struct WorkerExited {
  PeerId peer;
  int32_t pid = 0;
  int32_t exit_code = 0;  // 128 + signal if a signal ended it
  int32_t signal = 0;
  std::string problem;  // why it could not be started or is lost, if that is what happened
  bool operator==(const WorkerExited&) const = default;
};

// Agent to coordinator, after Greeting: host `host` can start its workers, or cannot and why. A
// coordinator that was away learns from it what became of those that run, or ran, there.
struct AgentReady {
  uint32_t host = 0;
  std::string address;     // where the workers of this host listen
  uint16_t free_port = 0;  // on this host, for torch's rendezvous
  int32_t exit_code = 0;   // 126 or 127 with `problem`
  std::string problem;     // empty: all is well
  std::vector<PeerId> running = {};
  std::vector<WorkerExited> ended = {};  // the last of each slot
  std::string notice = {};               // why the host will be taken away; empty: it will not
  std::string store = {};                // where its store takes copies of others
  std::string store_http = {};           // and where it answers over HTTP
  bool operator==(const AgentReady&) const = default;
};

// Coordinator to agent: every host is ready, start.
struct StartWorkers {
  std::string master_address;  // of torch's rendezvous
  uint16_t master_port = 0;
  std::vector<std::string> stores = {};  // where each host's store takes copies; by host
  bool operator==(const StartWorkers&) const = default;
};

// Coordinator to agent: send this signal to all your workers.
struct SignalWorkers {
  int32_t signal = 0;
  bool operator==(const SignalWorkers&) const = default;
};

// What becomes of the workers' output.
struct OutputOptions {
  bool prefix = true;         // "[rank] " before each line
  bool quiet = false;         // nothing to the terminal
  std::string log_directory;  // empty: no files; else rank-N.log in it
  bool operator==(const OutputOptions&) const = default;
};

// How an agent learns that its machine will be taken away (revocation.h).
struct RevocationOptions {
  std::string provider = "off";  // "aws", "gcp" or "azure"
  std::string metadata_url = {};
  int64_t poll_ns = 0;
  bool operator==(const RevocationOptions&) const = default;
};

// What the store of a host may keep (store_service.h); 0: the agent's defaults.
struct StoreOptions {
  uint64_t bytes_max = 0;
  uint32_t versions_max = 0;
  uint32_t copies = 0;         // hosts that have each version; 1: none but its own
  std::string directory = {};  // where the newest version is kept on disk; empty: nowhere
  bool operator==(const StoreOptions&) const = default;
};

// Launcher to agent, over its standard input: all that an agent needs to know.
struct AgentSpec {
  std::string coordinator;
  std::string token;
  std::string host_name;
  std::string address;  // of the data network; empty: the one that reaches the coordinator
  uint32_t host = 0;
  uint32_t group_rank = 0;  // position among the hosts that run workers, for torch
  uint32_t first_rank = 0;
  uint32_t worker_count = 0;  // on this host
  uint32_t world_size = 0;
  std::vector<std::string> command;
  std::string directory;
  std::map<std::string, std::string> environment;  // added to the agent's own
  OutputOptions output;
  bool elastic = false;  // workers are started one by one, by StartWorker, each with a life lock
  RevocationOptions revocation = {};  // of elastic jobs
  StoreOptions store = {};
  bool operator==(const AgentSpec&) const = default;
};

// The messages below belong to elastic jobs.

// Coordinator to worker: make these reachable while training goes on; they may become members.
struct Meet {
  std::vector<Member> members;
  bool operator==(const Meet&) const = default;
};

// Worker to coordinator: these are reachable.
struct Met {
  std::vector<PeerId> peers;
  bool operator==(const Met&) const = default;
};

// Coordinator to worker: too few members are left; a view follows when enough have joined.
struct Paused {
  std::string reason;
  bool operator==(const Paused&) const = default;
};

// Worker to coordinator, four times in each heartbeat.
struct Alive {
  bool operator==(const Alive&) const = default;
};

// Rank 0 to coordinator: the last committed step.
struct Progress {
  uint64_t step = 0;
  uint64_t samples = 0;
  bool operator==(const Progress&) const = default;
};

// Worker to coordinator: the program asks for this number of members.
struct Proposal {
  uint32_t size = 0;
  bool operator==(const Proposal&) const = default;
};

// Rank 0 to coordinator: its view works, and what getting there took.
struct Recovered {
  uint32_t epoch = 0;
  uint64_t step = 0;
  int64_t agree_ns = 0;
  int64_t redo_ns = 0;
  int64_t transfer_ns = 0;
  uint64_t transfer_bytes = 0;
  bool incomplete = false;  // newcomers still wait for the state; another one follows
  bool operator==(const Recovered&) const = default;
};

// Coordinator to agent: start one worker.
struct StartWorker {
  uint16_t slot = 0;
  uint32_t incarnation = 0;
  uint32_t rank = 0;  // its number for logs and RANK; unique and growing, no position in a view
  bool operator==(const StartWorker&) const = default;
};

// Coordinator to agent: send this signal to one worker.
struct SignalWorker {
  PeerId peer;
  int32_t signal = 0;
  bool operator==(const SignalWorker&) const = default;
};

// Agent to coordinator: this worker holds its life lock no longer. WorkerExited follows with the
// reason, once the kernel has torn down its memory.
struct WorkerDied {
  PeerId peer;
  bool operator==(const WorkerDied&) const = default;
};

// Agent to coordinator: this worker, or all of the host, will be taken away soon. A worker says it
// of itself.
struct Notice {
  static constexpr uint16_t kWholeHost = 0xffff;
  uint32_t host = 0;
  uint16_t slot = kWholeHost;
  std::string reason;
  bool operator==(const Notice&) const = default;
};

// Launcher to the coordinator of its own: its introduction, and each signal of the user after it.
struct LauncherSignal {
  int32_t signal = 0;  // 0: none so far
  bool operator==(const LauncherSignal&) const = default;
};

// Launcher to coordinator: what ran a host's agent has ended.
struct AgentEnded {
  uint32_t host = 0;
  std::string reason;
  bool operator==(const AgentEnded&) const = default;
};

// Coordinator to launcher: the job is over.
struct JobFinished {
  int32_t exit_code = 0;
  std::string message;  // for the user; empty if all went well
  bool operator==(const JobFinished&) const = default;
};

using Message =
    std::variant<Greeting, Join, Leave, ViewDecided, Refused, PeerLost, AgentReady, StartWorkers,
                 SignalWorkers, WorkerExited, AgentSpec, Meet, Met, Paused, Alive, Progress,
                 Proposal, Recovered, StartWorker, SignalWorker, WorkerDied, Notice, LauncherSignal,
                 AgentEnded, JobFinished, ViewChanged>;

// The whole message, length first.
std::vector<std::byte> encode_message(const Message& message);

// One body, without the length. An error is kInvalid.
Result<Message> decode_message(Bytes body);

// Cuts a stream of bytes into messages; holds at most one incomplete message of `size_bytes_max`.
class MessageReader {
 public:
  explicit MessageReader(size_t size_bytes_max) : size_bytes_max_(size_bytes_max) {}
  // Raised once the sender has proved who it is.
  void set_limit(size_t size_bytes_max) { size_bytes_max_ = size_bytes_max; }

  void feed(Bytes bytes);
  // The next message; nothing if it is not complete yet. After an error the stream is useless.
  Result<std::optional<Message>> next();

 private:
  size_t size_bytes_max_;
  std::vector<std::byte> buffer_;
  size_t start_ = 0;  // of what is not read yet
};

}  // namespace pliant
