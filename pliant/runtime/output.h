// The output of workers on its way to people: whole lines with a prefix, written to the terminal
// or a pipe without ever blocking the loop. Used with the loop held.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "pliant/loop/loop.h"

namespace pliant {

// Cuts a stream into lines and puts the prefix before each. A carriage return ends a line too, so
// that progress bars move; a line of more than kLineBytesMax is broken. Pure.
class LinePrefixer final {
 public:
  static constexpr size_t kLineBytesMax = 64 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  // The lines that are complete now.
  std::string feed(std::string_view bytes);
  // What is left at the end, as a line.
  std::string finish();

 private:
  void put_line(std::string_view line, std::string& lines) const;

  std::string prefix_;
  std::string rest_;  // an incomplete line
};

// A descriptor that is written to as it has room. Its owner borrows it to all who write; the
// descriptor may be shared with other processes, so its flags are left alone.
class Output final {
 public:
  Output(Loop& loop, int fd);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Takes all; a writer that finds it full() afterwards should hold back until it has room again.
  void write(std::string_view bytes);
  bool full() const;
  // Called once, when there is room again; forgotten with forget().
  void when_room(const void* owner, std::function<void()> callback);
  void forget(const void* owner) { waiting_.erase(owner); }
  // Writes all that is left, however long its reader takes.
  void drain();

 private:
  enum class Kind { kPlain, kPipe, kSocket };  // kPlain: a file, which never makes one wait

  void flush();
  ssize_t write_some(std::string_view bytes) const;
  void stop_watching();
  void discard();

  Loop& loop_;
  const int fd_;
  Kind kind_;
  bool watching_ = false;
  bool broken_ = false;  // nobody reads any more
  std::string queue_;
  size_t start_ = 0;  // of what is not written yet
  std::map<const void*, std::function<void()>> waiting_;
};

}  // namespace pliant
