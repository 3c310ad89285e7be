// A small HTTP/1.1 server on the caller's loop: requests in, answers and streams out.
//
// Everything is called, and every callback runs, with the loop held; so is the destructor, which
// ends all streams. A service answers at once; it is therefore part of the loop's thread and must
// not block. Whoever does not show the token gets 401, except for GET of the public paths, and
// before more of a body is kept than came with its head. Nothing is unbounded: head, body, all
// bodies together, connections, the time that a request may take to arrive and an answer to be
// read, and what is kept for a slow reader of a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/http_request.h"
#include "pliant/transport/socket.h"

namespace pliant {

struct HttpOptions {
  Address address;    // port 0 lets the kernel choose
  int listener = -1;  // a descriptor that listens already, and becomes ours; -1: none
  std::string token;
  std::set<std::string> public_paths;
  HttpLimits limits;
  size_t bodies_bytes_max = size_t{256} << 20;  // of requests that are arriving
  size_t connections_max = 64;
  Duration idle_max = std::chrono::seconds(30);     // between requests, and between two reads
  Duration request_max = std::chrono::seconds(10);  // from a request's first byte to its last
  size_t unread_bytes_max = size_t{4} << 20;        // beyond it a stream's reader is dropped
};

enum class HttpStreamId : uint64_t {};

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields;
  // If set, the answer has no end: the body is its beginning, and this is called once, before
  // anything is sent, with the name under which more can be sent.
  std::function<void(HttpStreamId)> on_stream;
};

// {"error": "..."}
HttpAnswer http_error(int status, const std::string& message);

class HttpServer final {
 public:
  struct Callbacks {
    std::function<HttpAnswer(const HttpRequest&)> on_request;
    // Before a body arrives: nothing to let it come, or the answer instead of it. Not asked if it
    // came with its head.
    std::function<std::optional<HttpAnswer>(const HttpRequest&)> on_head = {};
    // The reader of a stream is gone. Not called for streams that the destructor ends.
    std::function<void(HttpStreamId)> on_stream_closed;
  };

  static Result<std::unique_ptr<HttpServer>> open(Loop& loop, HttpOptions options,
                                                  Callbacks callbacks);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "127.0.0.1:4711"
  std::string endpoint() const { return endpoint_; }
  size_t connection_count() const { return connections_.size(); }

  // Sends more of a stream; nothing if its reader is gone. Its end is told later, from the loop, so
  // that a caller may walk over its streams meanwhile.
  void send(HttpStreamId stream, std::string_view text);

 private:
  struct Connection {
    // kLingering: our last answer is out; what the client still sends is read and thrown away, or
    // the kernel would reset the connection and the answer with it.
    enum class State { kReading, kWriting, kStreaming, kLingering } state = State::kReading;
    Fd socket;
    HttpParser parser;
    std::string out;
    size_t out_sent_bytes = 0;  // of `out`
    bool proven = false;        // has shown the token once
    bool ends = false;          // after what is in `out`
    bool admitted = false;      // the body that is arriving
    bool told_to_go_on = false;
    bool closing = false;  // its end is posted
    size_t discarded_bytes = 0;
    uint64_t stamp = 0;  // grows with each request; the smallest is the longest idle
    std::optional<Loop::TimerId> deadline;
  };
  using Id = uint64_t;

  HttpServer(Loop& loop, HttpOptions options, Callbacks callbacks, Fd listener,
             std::string endpoint);
  void accept_waiting();
  void pause_listening();
  bool make_room();
  void on_ready(Id id, uint32_t events);
  bool read_some(Id id, Connection& connection);
  void serve_waiting(Id id, Connection& connection);
  std::optional<HttpAnswer> refuse_body(Connection& connection);
  HttpAnswer answer(Connection& connection, const HttpRequest& request);
  bool shows_token(const HttpRequest& request) const;
  void put_answer(Id id, Connection& connection, HttpAnswer answer);
  void fail(Connection& connection, const HttpFault& fault);
  void flush(Id id, Connection& connection);
  void finish_answer(Id id, Connection& connection);
  void set_deadline(Id id, Connection& connection, Duration after);
  void on_deadline(Id id);
  void close_soon(Id id, Connection& connection);
  void close(Id id);
  Connection* find(Id id);

  Loop& loop_;
  const HttpOptions options_;
  const Callbacks callbacks_;
  const Fd listener_;
  const std::string endpoint_;
  std::optional<Loop::TimerId> resume_;
  Id next_id_ = 1;
  uint64_t next_stamp_ = 1;
  std::map<Id, Connection> connections_;
  // Posted work may outlive this server.
  const std::shared_ptr<HttpServer*> alive_ = std::make_shared<HttpServer*>(this);
};

}  // namespace pliant
