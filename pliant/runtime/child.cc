#include "pliant/runtime/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "pliant/base/thread.h"
#include "pliant/runtime/process_group.h"

namespace pliant {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kPipeBytes = 64 * 1024;  // what a pipe holds unless it is made larger
// What a process that survived its parent may still write when that has ended.
constexpr size_t kRestBytesMax = 1 << 20;

struct Pipe {
  Fd read;
  Fd write;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("cannot make a pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

// posix_spawn's two option objects, freed in any case.
class SpawnOptions final {
 public:
  SpawnOptions() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnOptions() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnOptions(const SpawnOptions&) = delete;
  SpawnOptions& operator=(const SpawnOptions&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

Result<std::unique_ptr<Child>> Child::start(Loop& loop, const ChildOptions& options,
                                            std::function<void(const ChildEnd&)> on_end) {
  std::unique_ptr<Child> child(new Child(loop));
  child->on_end_ = std::move(on_end);
  if (!options.log_file.empty()) {
    child->log_ =
        Fd(::open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!child->log_.valid()) return system_error("cannot write " + options.log_file);
  }
  PLIANT_TRY(child->spawn(options));
  return child;
}

Status Child::spawn(const ChildOptions& options) {
  auto out = make_pipe();
  auto error = make_pipe();
  auto input = make_pipe();
  if (!out || !error || !input) return system_error("cannot make a pipe");
  SpawnOptions spawn;
  if (options.wants_input) {
    posix_spawn_file_actions_adddup2(&spawn.actions, input->read.get(), STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&spawn.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&spawn.actions, out->write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, error->write.get(), STDERR_FILENO);
  // A duplicate onto itself only clears "close on exec", and only in the child. The number is not
  // one that the child could have from our own parent.
  for (const int fd : options.inherited) posix_spawn_file_actions_adddup2(&spawn.actions, fd, fd);
  if (!options.directory.empty())
    posix_spawn_file_actions_addchdir_np(&spawn.actions, options.directory.c_str());
  // We block the signals that we forward and ignore SIGPIPE; the child is to know nothing of that.
  sigset_t none;
  sigemptyset(&none);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  // A shell that runs us in the background lets us ignore these; whoever we forward them to should
  // heed them.
  sigaddset(&defaults, SIGINT);
  sigaddset(&defaults, SIGQUIT);
  posix_spawnattr_setsigmask(&spawn.attributes, &none);
  posix_spawnattr_setsigdefault(&spawn.attributes, &defaults);
  posix_spawnattr_setpgroup(&spawn.attributes, options.group);
  posix_spawnattr_setflags(&spawn.attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int problem =
      posix_spawn(&pid_, options.program.c_str(), &spawn.actions, &spawn.attributes,
                  pointers(options.arguments).data(), pointers(options.environment).data());
  if (problem != 0) {
    pid_ = 0;
    errno = problem;
    return system_error(fmt::format("cannot start '{}'", options.program));
  }
  exit_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!exit_.valid()) return system_error("cannot watch a child process");
  loop_.watch(exit_.get(), EPOLLIN, [this](uint32_t) { on_exit(); });
  if (options.wants_input) {
    input_ = std::move(input->write);
    fcntl(input_.get(), F_SETFL, O_NONBLOCK);
  }

  streams_[0] = {std::move(out->read), options.out, LinePrefixer(options.prefix), false};
  streams_[1] = {std::move(error->read), options.error, LinePrefixer(options.prefix), false};
  for (Stream& stream : streams_) {
    fcntl(stream.fd.get(), F_SETFL, O_NONBLOCK);
    watch(stream);
  }
  return {};
}

Child::~Child() {
  for (Stream& stream : streams_) {
    unwatch(stream);
    if (stream.output != nullptr) stream.output->forget(&stream);
  }
  if (exit_.valid()) loop_.unwatch(exit_.get());
  if (pid_ == 0) return;
  kill_and_reap(pid_);
}

void Child::signal(int signal) const {
  if (pid_ != 0) kill(pid_, signal);
}

Status Child::write_input(Bytes bytes) const {
  if (bytes.size() > kPipeBytes)
    fcntl(input_.get(), F_SETPIPE_SZ, static_cast<int>(bytes.size() + kPipeBytes));
  ssize_t written = -1;
  do {
    written = write(input_.get(), bytes.data(), bytes.size());
  } while (written < 0 && errno == EINTR);
  if (written == std::ssize(bytes) || (written < 0 && errno == EPIPE)) return {};
  return invalid(
      fmt::format("{} are too much for the standard input of a child", human_bytes(bytes.size())));
}

void Child::watch(Stream& stream) {
  if (!stream.fd.valid() || stream.watching) return;
  stream.watching = true;
  loop_.watch(stream.fd.get(), EPOLLIN, [this, &stream](uint32_t) { read_some(stream); });
}

void Child::unwatch(Stream& stream) {
  if (!stream.watching) return;
  stream.watching = false;
  loop_.unwatch(stream.fd.get());
}

void Child::read_some(Stream& stream) {
  std::array<char, kReadBytes> room;
  const ssize_t got = read(stream.fd.get(), room.data(), room.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) {
    close_stream(stream);
    return;
  }
  take(stream, {room.data(), static_cast<size_t>(got)});
  // A reader that is slower than the child slows the child down, not our memory.
  if (stream.output != nullptr && stream.output->full()) {
    unwatch(stream);
    stream.output->when_room(&stream, [this, &stream] { watch(stream); });
  }
}

void Child::take(Stream& stream, std::string_view bytes) {
  if (stream.output != nullptr) stream.output->write(stream.lines.feed(bytes));
  while (log_.valid() && !bytes.empty()) {
    const ssize_t written = write(log_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // a full disk must not end the job
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void Child::read_now() {
  for (Stream& stream : streams_) read_rest(stream);
}

void Child::read_rest(Stream& stream) {
  std::array<char, kReadBytes> room;
  for (size_t total = 0; stream.fd.valid() && total < kRestBytesMax;) {
    const ssize_t got = read(stream.fd.get(), room.data(), room.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    take(stream, {room.data(), static_cast<size_t>(got)});
    total += static_cast<size_t>(got);
  }
  close_stream(stream);
}

void Child::close_stream(Stream& stream) {
  if (!stream.fd.valid()) return;
  unwatch(stream);
  stream.fd.reset();
  if (stream.output == nullptr) return;
  stream.output->forget(&stream);
  stream.output->write(stream.lines.finish());
}

void Child::on_exit() {
  siginfo_t found{};
  const int problem = waitid(P_PID, static_cast<id_t>(pid_), &found, WEXITED | WNOHANG | WNOWAIT);
  if (problem == 0 && found.si_pid == 0) return;
  ChildEnd end{.pid = pid_, .exit_code = 0, .signal = 0};
  if (problem != 0) {
    end.exit_code = 1;  // somebody else reaped it
  } else if (found.si_code == CLD_EXITED) {
    end.exit_code = found.si_status;
    waitpid(pid_, nullptr, WNOHANG);
  } else {
    end.signal = found.si_status;
    end.exit_code = 128 + end.signal;
    reap_in_idle_time(pid_);
  }
  pid_ = 0;
  loop_.unwatch(exit_.get());
  exit_.reset();
  for (Stream& stream : streams_) read_rest(stream);
  const auto on_end = on_end_;
  on_end(end);
}

}  // namespace pliant
