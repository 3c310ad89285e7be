#include "pliant/runtime/remote_agent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pliant/base/log.h"
#include "pliant/base/thread.h"
#include "pliant/runtime/agent.h"
#include "pliant/runtime/control_socket.h"
#include "pliant/runtime/steady_link.h"

namespace pliant {
namespace {

constexpr Duration kSpecWait = std::chrono::seconds(30);
constexpr Duration kConnectWait = std::chrono::seconds(30);

// Waits for the launcher's one message; leaves the input open, for its end is a signal too.
Result<AgentSpec> read_spec(Instant deadline) {
  MessageReader reader(kControlBytesMax);
  std::array<std::byte, 4096> room;
  while (true) {
    auto message = reader.next();
    if (!message) return message.error();
    if (message->has_value()) {
      if (auto* spec = std::get_if<AgentSpec>(&**message); spec && !spec->command.empty())
        return std::move(*spec);
      return invalid("the launcher sent something else than its order");
    }
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now());
    if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) == 0)
      return Error{Code::kTimeout, "the launcher sent no order", {}, {}};
    const ssize_t got = read(STDIN_FILENO, room.data(), room.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return invalid("no order on standard input: `pliant run` starts agents, people do not");
    reader.feed(Bytes(room).subspan(0, static_cast<size_t>(got)));
  }
}

class RemoteAgent final {
 public:
  RemoteAgent(Loop& loop, ProcessGroup& group)
      : loop_(loop), group_(group), out_(loop, STDOUT_FILENO), error_(loop, STDERR_FILENO) {}
  ~RemoteAgent() {
    if (watching_input_) loop_.unwatch(STDIN_FILENO);
    if (notice_.valid()) loop_.unwatch(notice_.get());
  }
  RemoteAgent(const RemoteAgent&) = delete;
  RemoteAgent& operator=(const RemoteAgent&) = delete;

  // Returns when the launcher is gone, which is how every job ends here, or the coordinator of a
  // job of fixed size. That of an elastic job may come back.
  Status serve(AgentSpec spec) {
    PLIANT_TRY(connect(spec));
    if (spec.elastic) watch_notice();
    agent_.emplace(Agent::Surroundings{loop_, group_, out_, error_}, std::move(spec),
                   Agent::Reports{[this](const WorkerExited& exited) { link_->send(exited); },
                                  [this](const WorkerDied& died) { link_->send(died); },
                                  [this](const Notice& notice) { link_->send(notice); }});
    watch_input();
    const AgentReady ready = agent_->prepare();
    prepared_ = true;
    link_->send(ready);
    run_promptly();
    while (!over_) turn(std::chrono::hours(1));
    group_.signal(SIGKILL);
    prepared_ = false;
    agent_.reset();
    out_.drain();
    error_.drain();
    return {};
  }

 private:
  Status connect(AgentSpec& spec) {
    const auto address = parse_endpoint(spec.coordinator);
    if (!address) return address.error();
    link_.emplace(loop_, *address, spec.token,
                  SteadyLink::Callbacks{[this]() -> std::vector<Message> {
                                          if (!prepared_) return {};
                                          return {agent_->report()};
                                        },
                                        [this](const Message& message) { obey(message); },
                                        [this, elastic = spec.elastic](const Error& error) {
                                          if (!elastic) end(error);
                                        }});
    const Instant deadline = now() + kConnectWait;
    while (!over_ && !link_->open() && now() < deadline) turn(deadline - now());
    if (!link_->open())
      return invalid(fmt::format("host {} cannot reach the coordinator at {}: {}", spec.host_name,
                                 spec.coordinator,
                                 link_->why_closed().empty() ? "no answer" : link_->why_closed()));
    if (spec.address.empty()) {
      // The way to the coordinator is the network that the hosts share.
      const auto local = link_->local();
      if (!local) return local.error();
      spec.address = host_text(*local);
    }
    return {};
  }

  void watch_input() {
    struct stat status {};
    if (fstat(STDIN_FILENO, &status) != 0 || S_ISREG(status.st_mode)) return;
    watching_input_ = true;
    loop_.watch(STDIN_FILENO, EPOLLIN, [this](uint32_t) {
      std::array<char, 256> ignored;
      if (read(STDIN_FILENO, ignored.data(), ignored.size()) <= 0)
        end(invalid("the launcher is gone"));
    });
  }

  // SIGTERM tells that this host will be taken away: its workers leave first. A second one ends it.
  void watch_notice() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    notice_ = Fd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!notice_.valid()) return;
    loop_.watch(notice_.get(), EPOLLIN, [this](uint32_t) {
      signalfd_siginfo info{};
      while (read(notice_.get(), &info, sizeof info) == sizeof info) {
        if (std::exchange(noticed_, true)) end(invalid("the agent was told twice to end"));
        if (agent_) agent_->give_notice("its agent was told to end by signal 15");
      }
    });
  }

  void obey(const Message& message) {
    if (const auto* start = std::get_if<StartWorkers>(&message)) {
      if (agent_) agent_->start(*start);
    } else if (const auto* one = std::get_if<StartWorker>(&message)) {
      if (agent_) agent_->start_worker(*one);
    } else if (const auto* signal_one = std::get_if<SignalWorker>(&message)) {
      if (agent_) agent_->signal_worker(*signal_one);
    } else if (const auto* signal = std::get_if<SignalWorkers>(&message)) {
      group_.signal(signal->signal);
    } else if (const auto* refused = std::get_if<Refused>(&message)) {
      end(invalid("the coordinator refused: " + refused->reason));
    }
  }

  void end(const Error& error) {
    over_ = true;
    log(LogLevel::kInfo, error.message);
  }

  void turn(Duration longest) {
    loop_.unlock();
    loop_.wait(longest);
    loop_.lock();
    loop_.turn();
  }

  Loop& loop_;
  ProcessGroup& group_;
  Output out_;
  Output error_;
  std::optional<SteadyLink> link_;
  std::optional<Agent> agent_;
  bool prepared_ = false;
  bool watching_input_ = false;
  Fd notice_;
  bool noticed_ = false;
  bool over_ = false;
};

}  // namespace

int serve_agent() {
  std::signal(SIGPIPE, SIG_IGN);
  auto spec = read_spec(now() + kSpecWait);
  if (!spec) {
    log(LogLevel::kError, spec.error().message);
    return 1;
  }
  auto group = ProcessGroup::make();
  if (!group) {
    log(LogLevel::kError, group.error().message);
    return 1;
  }
  adopt_orphans();
  Status status;
  {
    Loop loop;
    const std::lock_guard guard(loop);
    status = RemoteAgent(loop, **group).serve(std::move(*spec));
  }
  group->reset();
  end_orphans();
  if (status) return 0;
  log(LogLevel::kError, status.error().message);
  return 1;
}

}  // namespace pliant
