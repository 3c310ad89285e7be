// A job for the tests of the commands: the real HTTP interface, event log and job file over a
// pretended coordinator. It obeys lines on standard input, and prints each wish that it is told:
//
//   control_worker NAME [ENDPOINT]   prints "ready ENDPOINT"; the token is in PLIANT_TOKEN
//   event KIND MESSAGE               it happens
//   pause REASON                     it pauses
//   crash                            ends without a good-bye, as by SIGKILL
//   end                              ends in order; so does the end of standard input
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "pliant/loop/loop.h"
#include "pliant/runtime/control_api.h"
#include "pliant/runtime/job_files.h"

namespace {

using pliant::Status;

class PretendedJob final {
 public:
  PretendedJob(const std::string& name, const std::string& endpoint) {
    status_.job = name;
    status_.state = pliant::JobState::kRunning;
    status_.min = 1;
    status_.max = 8;
    resize(2);
    pliant::ControlOptions options;
    options.http.address = pliant::parse_endpoint(endpoint).value();
    options.http.token = std::getenv("PLIANT_TOKEN");
    auto api = pliant::ControlApi::open(
        loop_, events_,
        {.status = [this] { return pliant::Result<pliant::JobReport>(status_); },
         .wish = [this](const pliant::Wish& wish) { return grant(wish); }},
        options);
    if (!api.ok()) die(api.error().message);
    api_ = std::move(*api);
    const auto folder = pliant::job_folder(std::getenv("XDG_RUNTIME_DIR"), std::getenv("HOME"));
    auto file = pliant::JobFile::write(
        *folder,
        {.job = name, .endpoint = api_->endpoint(), .token = options.http.token, .pid = getpid()});
    if (!file.ok()) die(file.error().message);
    file_ = std::move(*file);
    say("ready " + api_->endpoint());
    loop_.watch(STDIN_FILENO, EPOLLIN, [this](uint32_t) { read_lines(); });
  }
  ~PretendedJob() { loop_.unwatch(STDIN_FILENO); }

  void run() {
    while (!ends_) {
      loop_.unlock();
      loop_.wait(std::chrono::seconds(1));
      loop_.lock();
      loop_.turn();
    }
  }

 private:
  [[noreturn]] static void die(const std::string& message) {
    std::fprintf(stderr, "control_worker: %s\n", message.c_str());
    std::exit(1);
  }
  static void say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  // Makes the loop its own before anything else is made, and gives it back last.
  struct Held {
    explicit Held(pliant::Loop& loop) : loop(loop) { loop.lock(); }
    ~Held() { loop.unlock(); }
    pliant::Loop& loop;
  };

  void happen(const std::string& kind, const std::string& message) {
    events_.append({.id = 0, .time_ms = 1, .kind = kind, .message = message, .details = "{}"});
  }
  void resize(uint32_t size) {
    status_.target = size;
    ++status_.epoch;
    status_.members.resize(size);
    for (uint32_t i = 0; i < size; ++i)
      status_.members[i] = {static_cast<int>(i), {0, static_cast<uint16_t>(i), 1}, "a", 100, 1};
  }
  Status grant(const pliant::Wish& wish) {
    say("wish " + pliant::wish_json(wish));
    if (const auto* size = std::get_if<pliant::ResizeWish>(&wish)) {
      if (size->size < status_.min) return pliant::invalid("the size must be at least 1");
      if (size->size > status_.max) return pliant::invalid("the size must be at most 8");
      resize(size->size);
      happen("view", "there are " + std::to_string(size->size) + " members");
    } else if (const auto* drain = std::get_if<pliant::DrainWish>(&wish)) {
      if (drain->host != "a" && drain->host != "") return pliant::invalid("there is no such host");
    } else {
      loop_.post([this] { ends_ = true; });
    }
    return {};
  }
  void read_lines() {
    char room[4096];
    const ssize_t count = read(STDIN_FILENO, room, sizeof room);
    if (count <= 0) {
      ends_ = true;
      return;
    }
    input_.append(room, static_cast<size_t>(count));
    for (size_t end; (end = input_.find('\n')) != std::string::npos;) {
      obey(input_.substr(0, end));
      input_.erase(0, end + 1);
    }
  }
  void obey(const std::string& line) {
    const size_t first = line.find(' ');
    const std::string word = line.substr(0, first);
    const std::string rest = first == std::string::npos ? "" : line.substr(first + 1);
    if (word == "crash") _exit(9);
    if (word == "end") ends_ = true;
    if (word == "event") happen(rest.substr(0, rest.find(' ')), rest.substr(rest.find(' ') + 1));
    if (word == "pause") {
      status_.state = pliant::JobState::kPaused;
      status_.paused_reason = rest;
    }
    say("done");
  }

  pliant::Loop loop_;
  Held held_{loop_};
  pliant::EventLog events_;
  pliant::JobReport status_;
  std::unique_ptr<pliant::ControlApi> api_;
  std::unique_ptr<pliant::JobFile> file_;
  std::string input_;
  bool ends_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  PretendedJob job(argv[1], argc > 2 ? argv[2] : "127.0.0.1:0");
  job.run();
  return 0;
}
