// A small blocking HTTP/1.1 client for the commands that talk to a job. One request a connection;
// the answer is read as it arrives, so it may be a stream without end. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/transport/socket.h"

namespace pliant::cli {

struct HttpCall {
  std::string endpoint;  // "127.0.0.1:4711"
  std::string token;
  std::string method = "GET";
  std::string target = "/";
  std::string body = {};
};

// Undoes the framing of a body: by length, in chunks, or until the connection ends.
class HttpBody final {
 public:
  enum class Framing { kLength, kChunks, kUntilEnd };
  HttpBody(Framing framing, uint64_t length) : framing_(framing), left_(length) {}

  // The content in these bytes, which follow those before; an error if the framing is broken.
  Result<std::string> take(std::string_view bytes);
  bool ended() const { return ended_ || (framing_ == Framing::kLength && left_ == 0); }
  // The connection has ended: is the body whole?
  bool whole_at_end() const { return ended() || framing_ == Framing::kUntilEnd; }

 private:
  bool take_chunk_line();

  const Framing framing_;
  uint64_t left_ = 0;  // of the length, or of the chunk in hand with the line end after it
  bool in_chunk_ = false;
  bool ended_ = false;
  std::string line_;  // of a chunk's head, as far as it has come
};

// A request that was sent and its answer, whose head has arrived.
class HttpExchange final {
 public:
  static Result<std::unique_ptr<HttpExchange>> open(const HttpCall& call, Duration longest);
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  int status() const { return status_; }
  int fd() const { return socket_.get(); }
  // More of the body; empty if none came within `longest`. An error if it breaks off.
  Result<std::string> read(Duration longest);
  bool ended() const { return body_->ended() || closed_; }

 private:
  HttpExchange(Fd socket, int status, std::unique_ptr<HttpBody> body, std::string early);

  const Fd socket_;
  const int status_;
  const std::unique_ptr<HttpBody> body_;
  std::string early_;  // came with the head
  bool closed_ = false;
};

struct HttpReply {
  int status = 0;
  std::string body;
};

// One request and its whole answer.
Result<HttpReply> http_call(const HttpCall& call, Duration longest);

}  // namespace pliant::cli
