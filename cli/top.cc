#include "cli/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "cli/event_feed.h"
#include "cli/job_client.h"
#include "cli/top_screen.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant top                          the only job of this machine
  pliant top --job train              one of several, by name or by its launcher's pid
  pliant top > changes.log            no terminal: the state, then a line for each event

q or Ctrl-C ends it. The exit code is 0, or 1 if the job cannot be reached (any more).)";

constexpr Duration kRedraw = std::chrono::seconds(1);
constexpr Duration kReconnect = std::chrono::milliseconds(200);

// Keys at once and a picture of our own, for as long as this exists. Ctrl-C is a key, and other
// requests to end come through a descriptor, so that the terminal is always put back.
class Terminal final {
 public:
  Terminal() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGQUIT}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &old_signals_);
    signals_ = Fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    has_keys_ = tcgetattr(STDIN_FILENO, &old_keys_) == 0;
    if (has_keys_) {
      termios keys = old_keys_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
      tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    show("\x1b[?1049h\x1b[?25l");  // the other screen, no cursor
  }
  ~Terminal() {
    show("\x1b[?25h\x1b[?1049l");
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &old_keys_);
    sigprocmask(SIG_SETMASK, &old_signals_, nullptr);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // False once it is gone.
  bool show(const std::string& text) { return print(text).ok(); }
  void draw(const TopState& state) {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {24, 80, 0, 0};
    show(top_picture(top_lines(state, size.ws_col, size.ws_row)));
  }
  // Waits for a key, a signal, the other descriptor or the time; true if the user wants to end.
  bool wait_for_end(int other, Duration longest) {
    std::array<pollfd, 3> waited = {pollfd{signals_.get(), POLLIN, 0}, pollfd{other, POLLIN, 0},
                                    pollfd{has_keys_ ? STDIN_FILENO : -1, POLLIN, 0}};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(longest).count();
    if (poll(waited.data(), waited.size(), static_cast<int>(std::max<int64_t>(ms, 0))) <= 0)
      return false;
    if (waited[0].revents != 0) {
      // Taken, or it would end us when signals are let through again.
      signalfd_siginfo taken{};
      return read(signals_.get(), &taken, sizeof taken) > 0;
    }
    if (waited[2].revents == 0) return false;
    std::array<char, 64> keys{};
    const ssize_t count = read(STDIN_FILENO, keys.data(), keys.size());
    if (count <= 0) return true;  // the terminal is gone
    const std::string typed(keys.data(), static_cast<size_t>(count));
    return typed.find_first_of("qQ\x03\x04") != std::string::npos;
  }

 private:
  Fd signals_;
  sigset_t old_signals_{};
  termios old_keys_{};
  bool has_keys_ = false;
};

int show_live(const JobChoice& choice, JobReport first) {
  TopState state{.status = std::move(first), .events = {}, .notice = "", .now_ms = wall_clock_ms()};
  EventFeed feed([&] { return choose(choice); }, 0);
  Error failure;
  {
    Terminal terminal;
    Instant due = now();
    while (!feed.ended() && failure.message.empty()) {
      const auto events = feed.next(Duration::zero());
      if (!events.ok()) {
        failure = events.error();
        break;
      }
      for (const Event& event : *events) state.events.push_back(event);
      while (state.events.size() > kTopEventsMax) state.events.pop_front();
      if (!events->empty() || now() >= due) {
        const auto job = choose(choice);
        auto status = job.ok() ? ask_report(*job) : Result<JobReport>(job.error());
        state.notice = status.ok() ? "" : status.error().message;
        if (status.ok()) state.status = std::move(*status);
        state.now_ms = wall_clock_ms();
        terminal.draw(state);
        due = now() + kRedraw;
      }
      const Duration longest = feed.fd() < 0 ? kReconnect : due - now();
      if (terminal.wait_for_end(feed.fd(), longest)) return 0;
    }
  }
  if (!failure.message.empty()) return report(failure);
  return print("the job has ended\n").ok() ? 0 : kFailed;
}

int show_lines(const JobChoice& choice, const JobReport& first) {
  if (!print(fmt::format("job {}: {}\n", printable(first.job), summary(first))).ok())
    return kFailed;
  EventFeed feed([&] { return choose(choice); }, 0);
  while (!feed.ended()) {
    const auto events = feed.next(std::chrono::hours(1));
    if (!events.ok()) return report(events.error());
    for (const Event& event : *events) {
      if (!print(event_line(event) + "\n").ok()) return kFailed;
    }
  }
  return 0;
}

int top(const JobChoice& choice) {
  const auto job = choose(choice);
  if (!job.ok()) return report(job.error());
  auto status = ask_report(*job);
  if (!status.ok()) return report(status.error());
  if (isatty(STDOUT_FILENO) == 0) return show_lines(choice, *status);
  return show_live(choice, std::move(*status));
}

}  // namespace

void add_top(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand("top", "Watch a running job live in the terminal");
  const auto choice = std::make_shared<JobChoice>();
  command->footer(kExamples);
  add_job_options(*command, *choice);
  command->callback([choice, &exit_code] { exit_code = top(*choice); });
}

}  // namespace pliant::cli
