// SIGTERM as a notice: the first one asks this process to leave its job in order, a later one ends
// it at once, as if nobody had watched.
//
// Schedulers signal every process of a job before they take its machine away; a launcher among them
// passes the signal on, so that what comes within a second of the first is the same notice. A
// program that has
// its own handler, or ignores the signal, is left alone. Several may exist in a process, each on
// its own loop; the default action is back when the last one is gone. Made, called back and
// destroyed with the loop held.
#pragma once

#include <functional>

#include "pliant/loop/loop.h"
#include "pliant/transport/socket.h"

namespace pliant {

class TerminationNotice final {
 public:
  static constexpr Duration kSameNotice = std::chrono::seconds(1);

  // `on_notice` is called once, in a turn of the loop.
  TerminationNotice(Loop& loop, std::function<void()> on_notice);
  ~TerminationNotice();
  TerminationNotice(const TerminationNotice&) = delete;
  TerminationNotice& operator=(const TerminationNotice&) = delete;

  // False if the program has its own way with SIGTERM.
  bool heeded() const { return place_ >= 0; }

 private:
  Loop& loop_;
  Fd wake_;         // an eventfd that the handler writes to
  int place_ = -1;  // among those that the handler knows
};

}  // namespace pliant
