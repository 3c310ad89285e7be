// A child process whose output we read and whose end we see in the loop. Owned by an agent or a
// launcher; called, and calls back, with the loop held.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/output.h"
#include "pliant/transport/socket.h"

namespace pliant {

struct ChildOptions {
  std::string program;                   // a path
  std::vector<std::string> arguments;    // the first is the name by which it was called
  std::vector<std::string> environment;  // "NAME=value"
  std::string directory;                 // empty: ours
  pid_t group = 0;                       // the process group it is to be in
  bool wants_input = false;              // false: it reads from /dev/null
  std::string prefix;                    // of each line of its output
  Output* out = nullptr;                 // where its standard output goes; null: nowhere
  Output* error = nullptr;
  std::string log_file;        // gets both, without prefix; empty: none
  std::vector<int> inherited;  // descriptors of ours that it gets under the same numbers
};

struct ChildEnd {
  pid_t pid = 0;
  int exit_code = 0;  // 128 + signal if a signal ended it
  int signal = 0;
};

class Child final {
 public:
  // `on_end` is called once, when it has ended and all its output was read; it may destroy this.
  static Result<std::unique_ptr<Child>> start(Loop& loop, const ChildOptions& options,
                                              std::function<void(const ChildEnd&)> on_end);
  // Kills and reaps it if it still runs.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal) const;
  // Writes to its standard input, which stays open. Never waits: an error if a pipe cannot hold it
  // all. A child that does not read is no error.
  Status write_input(Bytes bytes) const;
  void close_input() { input_.reset(); }
  // Passes on what it has written so far without waiting for the loop's next turn.
  void read_now();

 private:
  // One of its two output streams.
  struct Stream {
    Fd fd;
    Output* output = nullptr;
    LinePrefixer lines;
    bool watching = false;
  };

  explicit Child(Loop& loop) : loop_(loop) {}
  Status spawn(const ChildOptions& options);
  void watch(Stream& stream);
  void unwatch(Stream& stream);
  void read_some(Stream& stream);
  void read_rest(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void close_stream(Stream& stream);
  void on_exit();

  Loop& loop_;
  std::function<void(const ChildEnd&)> on_end_;
  pid_t pid_ = 0;
  Fd exit_;  // a pidfd: readable once it has ended
  Fd input_;
  Fd log_;
  Stream streams_[2] = {{{}, nullptr, LinePrefixer(""), false},
                        {{}, nullptr, LinePrefixer(""), false}};
};

}  // namespace pliant
