// Result<T>: a value or an Error. Status is the Result of a call that returns nothing.
//
// Bugs abort (check.h), events return. The code of an error names the reaction that is expected of
// the caller, not the place where it went wrong; the sentence says what was wrong, where, and what
// to do. Values; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "pliant/base/check.h"
#include "pliant/base/ids.h"

namespace pliant {

enum class Code : uint8_t {
  kPeerLost = 1,  // a member is gone: await the next view
  kStaleEpoch,    // it belongs to an older view: discard and redo
  kTimeout,       // a deadline passed: suspect the silent peer
  kCancelled,     // we are shutting down: unwind silently
  kOverloaded,    // a bound was reached: back off
  kInvalid,       // the request itself is wrong: tell the user, do not retry
};

const char* to_string(Code code);

struct Error {
  Code code = Code::kInvalid;
  std::string message;    // one human sentence
  PeerId peer = {};       // the peer concerned, if any (PeerId{} otherwise)
  Epoch epoch = Epoch{};  // the view in which it happened, if any
};

// "peer lost: rank 2 on host a was killed by signal 9"
std::string to_string(const Error& error);

// One pointer wide, and null for success, so that the hot path pays nothing for it.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::make_unique<Error>(std::move(error))) {}  // NOLINT: implicit

  bool ok() const { return error_ == nullptr; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    PLIANT_CHECK(!ok(), "error() of a success");
    return *error_;
  }
  Code code() const { return error().code; }

 private:
  std::unique_ptr<Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                               // NOLINT: implicit
  Result(Error error) : error_(std::make_unique<Error>(std::move(error))) {}  // NOLINT: implicit

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& value() {
    PLIANT_CHECK(ok(), error_ ? error_->message.c_str() : "value() of an error");
    return *value_;
  }
  const T& value() const { return const_cast<Result*>(this)->value(); }
  const Error& error() const {
    PLIANT_CHECK(!ok(), "error() of a success");
    return *error_;
  }
  Code code() const { return error().code; }

 private:
  std::optional<T> value_;
  std::unique_ptr<Error> error_;
};

inline Error invalid(std::string message) { return {Code::kInvalid, std::move(message), {}, {}}; }

// "what: No such file or directory", for a failed system call; reads errno.
Error system_error(const std::string& what);

}  // namespace pliant

// Passes an error on to the caller.
#define PLIANT_TRY(expression)                                                                \
  do {                                                                                        \
    if (auto pliant_status = (expression); !pliant_status.ok()) return pliant_status.error(); \
  } while (false)
