#include "cli/chaos_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "cli/chaos_record.h"
#include "cli/job_client.h"
#include "pliant/runtime/launch.h"

namespace pliant::cli {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(10);
constexpr Duration kEndWait = std::chrono::seconds(10);

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The value of a variable of another process, from its environment as the kernel keeps it.
std::string variable_of(int pid, const std::string& name) {
  const std::string text = '\0' + contents_of(fmt::format("/proc/{}/environ", pid));
  const std::string start = '\0' + name + "=";
  const size_t at = text.find(start);
  if (at == std::string::npos) return "";
  const size_t from = at + start.size();
  return text.substr(from, text.find('\0', from) - from);
}

bool is_agent(int pid) {
  const std::string words = contents_of(fmt::format("/proc/{}/cmdline", pid));
  const size_t first = words.find('\0');
  return first != std::string::npos && words.substr(first) == std::string("\0agent\0", 7);
}

}  // namespace

Interrupts::Interrupts() {
  sigemptyset(&set_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, &before_);
}

Interrupts::~Interrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void Interrupts::sleep(Duration time) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec wait{whole.count(), (time - whole).count()};
  const int signal = sigtimedwait(&set_, nullptr, &wait);
  if (signal > 0) signal_ = signal;
}

Result<std::unique_ptr<ChaosJob>> ChaosJob::start(const Options& options, Interrupts& interrupts) {
  const auto program = own_program();
  if (!program) return program.error();
  std::string folder = (std::filesystem::temp_directory_path() / "pliant-chaos-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return system_error("cannot make a temporary folder");
  std::unique_ptr<ChaosJob> job(new ChaosJob(folder, options.name, interrupts));
  std::vector<std::string> words = {*program, "run", "--job", options.name, "--quiet"};
  words.insert(words.end(), options.run.begin(), options.run.end());
  words.insert(words.end(), {"--", *program, "chaos-worker", "--records", folder});
  words.insert(words.end(), options.worker.begin(), options.worker.end());
  PLIANT_TRY(job->spawn(words, options.quiet));
  return job;
}

Status ChaosJob::spawn(const std::vector<std::string>& words, bool quiet) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  if (quiet) posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // In a group of its own: a Ctrl-C is ours, and we end the job when it is due.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  sigset_t defaults = none;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int failed =
      posix_spawn(&pid_, words[0].c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed == 0) return {};
  pid_ = 0;
  errno = failed;
  return system_error("cannot start " + words[0]);
}

ChaosJob::~ChaosJob() {
  end();
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(folder_, ignored);
}

bool ChaosJob::running() {
  if (pid_ > 0 && waitpid(pid_, &exit_status_, WNOHANG) == pid_) pid_ = 0;
  return pid_ > 0;
}

void ChaosJob::end() {
  if (!running()) return;
  // The first asks; the second does not wait for anybody.
  for (const int signal : {SIGINT, SIGINT, SIGKILL}) {
    kill(pid_, signal);
    const Instant give_up = now() + kEndWait;
    while (running() && now() < give_up) interrupts_.sleep(kPoll);
    if (!running()) return;
  }
}

bool ChaosJob::progresses(uint64_t before, Duration longest) {
  const Instant give_up = now() + longest;
  while (record_bytes() <= before) {
    if (!running() || interrupts_.happened() || now() > give_up) return false;
    interrupts_.sleep(kPoll);
  }
  return true;
}

std::optional<nlohmann::json> ChaosJob::status() const {
  const auto job = choose({.job = name_, .endpoint = ""});
  if (!job.ok()) return {};
  const auto body = ask(*job, "GET", "/v1/status", "");
  if (!body.ok()) return {};
  auto parsed = nlohmann::json::parse(*body, nullptr, false);
  return parsed.is_discarded() ? std::nullopt : std::optional(std::move(parsed));
}

Status ChaosJob::resize(int members) const {
  const auto job = choose({.job = name_, .endpoint = ""});
  if (!job.ok()) return job.error();
  const auto body =
      ask(*job, "PUT", "/v1/size", wish_json(ResizeWish{static_cast<uint32_t>(members)}));
  return body.ok() ? Status() : Status(body.error());
}

std::vector<ChaosJob::Member> ChaosJob::members() const {
  std::vector<Member> found;
  const auto said = status();
  if (!said || !said->contains("members")) return found;
  for (const auto& member : (*said)["members"]) {
    const int pid = member.value("pid", 0);
    if (pid <= 0) continue;
    std::error_code none;
    const auto size = std::filesystem::file_size(fmt::format("{}/{}", folder_, pid), none);
    found.push_back({pid, member.value("host", ""), !none && size >= sizeof(ChaosRecord)});
  }
  return found;
}

int ChaosJob::coordinator_pid() const {
  const auto said = status();
  return said ? said->value("coordinator_pid", 0) : 0;
}

std::vector<ChaosJob::AgentProcess> ChaosJob::agents() const {
  std::vector<AgentProcess> found;
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", pid_));
  int pid = 0;
  while (children >> pid) {
    const std::string host = variable_of(pid, kHostVariable);
    if (!host.empty() && is_agent(pid)) found.push_back({pid, host});
  }
  return found;
}

uint64_t ChaosJob::record_bytes() const {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    const auto size = entry.file_size(ignored);
    if (!ignored) bytes += size;
  }
  return bytes;
}

}  // namespace pliant::cli
