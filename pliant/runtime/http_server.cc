#include "pliant/runtime/http_server.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "pliant/base/bytes.h"

namespace pliant {
namespace {

constexpr Duration kLinger = std::chrono::seconds(2);
constexpr Duration kListenAgain = std::chrono::milliseconds(100);
constexpr size_t kLingerBytesMax = size_t{1} << 20;
constexpr int kAcceptedMax = 64;  // in one turn
constexpr std::string_view kLastChunk = "0\r\n\r\n";

std::string head_of(const HttpAnswer& answer, bool keep_alive) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nCache-Control: no-store\r\n",
                  answer.status, http_reason(answer.status), answer.type);
  for (const auto& [name, value] : answer.fields) head += fmt::format("{}: {}\r\n", name, value);
  if (answer.on_stream) {
    head += "Transfer-Encoding: chunked\r\n";
  } else {
    head += fmt::format("Content-Length: {}\r\n", answer.body.size());
  }
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

ssize_t send_rest(const Fd& socket, const std::string& text, size_t from) {
  return ::send(socket.get(), text.data() + from, text.size() - from, MSG_NOSIGNAL);
}

HttpAnswer no_token() {
  return http_error(401, "the job's token is missing or wrong: Authorization: Bearer TOKEN");
}

// An empty chunk would end the stream.
std::string chunk_of(std::string_view text) {
  return text.empty() ? "" : fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}

}  // namespace

HttpAnswer http_error(int status, const std::string& message) {
  // Bytes that are no UTF-8 may come from the client's own path or body.
  const std::string body = nlohmann::json{{"error", message}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  HttpAnswer answer{.status = status, .body = body + "\n", .fields = {}, .on_stream = {}};
  if (status == 401) answer.fields.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

Result<std::unique_ptr<HttpServer>> HttpServer::open(Loop& loop, HttpOptions options,
                                                     Callbacks callbacks) {
  loop.assert_held();
  PLIANT_CHECK(!options.token.empty(), "without a token everybody could command the job");
  auto listener =
      options.listener >= 0 ? Result<Fd>(Fd(options.listener)) : listen_tcp(options.address);
  if (!listener.ok()) return listener.error();
  const auto bound = local_address(*listener);
  if (!bound.ok()) return bound.error();
  return std::unique_ptr<HttpServer>(new HttpServer(loop, std::move(options), std::move(callbacks),
                                                    std::move(*listener), to_string(*bound)));
}

HttpServer::HttpServer(Loop& loop, HttpOptions options, Callbacks callbacks, Fd listener,
                       std::string endpoint)
    : loop_(loop),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      listener_(std::move(listener)),
      endpoint_(std::move(endpoint)) {
  loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_waiting(); });
}

HttpServer::~HttpServer() {
  loop_.assert_held();
  *alive_ = nullptr;
  if (resume_) loop_.cancel(*resume_);
  loop_.unwatch(listener_.get());
  for (auto& [id, connection] : connections_) {
    if (connection.deadline) loop_.cancel(*connection.deadline);
    if (connection.closing) continue;  // it is unwatched already
    loop_.unwatch(connection.socket.get());
    // A reader that has kept up gets a clean end.
    if (connection.state == Connection::State::kStreaming) connection.out += kLastChunk;
    send_rest(connection.socket, connection.out, connection.out_sent_bytes);
  }
}

HttpServer::Connection* HttpServer::find(Id id) {
  const auto at = connections_.find(id);
  return at == connections_.end() || at->second.closing ? nullptr : &at->second;
}

void HttpServer::accept_waiting() {
  // The others wait for the next turn, in which the rest of the loop is served, too.
  for (int i = 0; i < kAcceptedMax; ++i) {
    auto socket = accept_from(listener_);
    if (!socket.ok()) {
      pause_listening();
      return;
    }
    if (!socket->valid()) return;
    if (!make_room()) {
      const HttpAnswer full = http_error(503, "too many connections; try again later");
      const std::string text = head_of(full, false) + full.body;
      send_rest(*socket, text, 0);
      continue;
    }
    const Id id = next_id_++;
    Connection& connection = connections_[id];
    connection.socket = std::move(*socket);
    connection.parser = HttpParser(options_.limits);
    connection.stamp = next_stamp_++;
    loop_.watch(connection.socket.get(), EPOLLIN,
                [this, id](uint32_t events) { on_ready(id, events); });
    set_deadline(id, connection, options_.idle_max);
  }
}

// Out of descriptors: the listener stays ready, and would keep the loop busy until one is free.
void HttpServer::pause_listening() {
  loop_.change(listener_.get(), 0);
  resume_ = loop_.at(now() + kListenAgain, [this] {
    resume_.reset();
    loop_.change(listener_.get(), EPOLLIN);
  });
}

// True if there is room for one more. A stranger's connection is worth less than a newcomer's, so
// that idle strangers cannot keep others out.
bool HttpServer::make_room() {
  if (connections_.size() < options_.connections_max) return true;
  Id oldest = 0;
  uint64_t stamp = next_stamp_;
  for (const auto& [id, connection] : connections_) {
    if (connection.proven || connection.closing || connection.stamp >= stamp) continue;
    oldest = id;
    stamp = connection.stamp;
  }
  if (oldest == 0) return false;
  close(oldest);
  return true;
}

void HttpServer::on_ready(Id id, uint32_t events) {
  Connection* const connection = find(id);
  if (connection == nullptr) return;
  if ((events & EPOLLOUT) != 0) {
    flush(id, *connection);
    if (find(id) == nullptr) return;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  if (!read_some(id, *connection)) return;
  if (connection->state == Connection::State::kReading) serve_waiting(id, *connection);
}

// One read at most, so that no client keeps the loop; false if the connection has ended.
bool HttpServer::read_some(Id id, Connection& connection) {
  std::array<char, 16384> room{};
  const ssize_t count = recv(connection.socket.get(), room.data(), room.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) {
    close_soon(id, connection);
    return false;
  }
  const auto bytes = static_cast<size_t>(count);
  if (connection.state == Connection::State::kReading) {
    if (!connection.parser.begun()) set_deadline(id, connection, options_.request_max);
    connection.parser.feed({room.data(), bytes});
    return true;
  }
  // Nothing that is sent during a stream or after the last answer will be served.
  connection.discarded_bytes += bytes;
  if (connection.discarded_bytes <= kLingerBytesMax) return true;
  close_soon(id, connection);
  return false;
}

void HttpServer::serve_waiting(Id id, Connection& connection) {
  HttpParser::Answer parsed = connection.parser.next();
  if (const auto* more = std::get_if<HttpParser::NeedMore>(&parsed)) {
    if (auto refusal = refuse_body(connection)) {
      connection.ends = true;
      put_answer(id, connection, std::move(*refusal));
      set_deadline(id, connection, options_.idle_max);
      flush(id, connection);
      return;
    }
    if (!more->expects_leave || connection.told_to_go_on) return;
    connection.told_to_go_on = true;
    connection.out += "HTTP/1.1 100 Continue\r\n\r\n";
    flush(id, connection);
    return;
  }
  connection.told_to_go_on = false;
  connection.admitted = false;
  connection.stamp = next_stamp_++;
  if (const auto* fault = std::get_if<HttpFault>(&parsed)) {
    fail(connection, *fault);
  } else {
    const auto& request = std::get<HttpRequest>(parsed);
    connection.ends = !request.keep_alive;
    put_answer(id, connection, answer(connection, request));
  }
  // Whoever does not read his answer within this time does not get it.
  set_deadline(id, connection, options_.idle_max);
  flush(id, connection);
}

// Why a body that has begun to arrive is not waited for.
std::optional<HttpAnswer> HttpServer::refuse_body(Connection& connection) {
  const HttpRequest* const head = connection.parser.head();
  if (head == nullptr || connection.admitted) return std::nullopt;
  if (!shows_token(*head)) return no_token();
  connection.proven = true;
  size_t arriving = 0;
  for (const auto& [id, other] : connections_) arriving += other.parser.body_bytes();
  if (arriving > options_.bodies_bytes_max)
    return http_error(503, "too much is being sent at once; try again later");
  connection.admitted = true;
  return callbacks_.on_head ? callbacks_.on_head(*head) : std::nullopt;
}

HttpAnswer HttpServer::answer(Connection& connection, const HttpRequest& request) {
  const bool proven = shows_token(request);
  connection.proven = connection.proven || proven;
  const bool is_public = request.method == "GET" && options_.public_paths.contains(request.path);
  if (!proven && !is_public) return no_token();
  return callbacks_.on_request(request);
}

bool HttpServer::shows_token(const HttpRequest& request) const {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view given = request.field("authorization");
  if (given.size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(given[i])) != kScheme[i]) return false;
  }
  return equal_in_constant_time(given.substr(kScheme.size()), options_.token);
}

void HttpServer::put_answer(Id id, Connection& connection, HttpAnswer answer) {
  connection.out += head_of(answer, !connection.ends);
  if (!answer.on_stream) {
    connection.out += answer.body;
    connection.state = Connection::State::kWriting;
    return;
  }
  connection.out += chunk_of(answer.body);
  connection.state = Connection::State::kStreaming;
  answer.on_stream(HttpStreamId{id});
}

void HttpServer::fail(Connection& connection, const HttpFault& fault) {
  connection.ends = true;
  const HttpAnswer error = http_error(fault.status, fault.message);
  connection.out += head_of(error, false) + error.body;
  connection.state = Connection::State::kWriting;
}

void HttpServer::send(HttpStreamId stream, std::string_view text) {
  loop_.assert_held();
  const Id id = static_cast<Id>(stream);
  Connection* const connection = find(id);
  if (connection == nullptr || connection->state != Connection::State::kStreaming) return;
  // A reader that is always a little behind must not make us keep what it has read.
  connection->out.erase(0, connection->out_sent_bytes);
  connection->out_sent_bytes = 0;
  connection->out += chunk_of(text);
  if (connection->out.size() > options_.unread_bytes_max) {
    close_soon(id, *connection);
    return;
  }
  flush(id, *connection);
}

void HttpServer::flush(Id id, Connection& connection) {
  if (connection.closing) return;
  while (connection.out_sent_bytes < connection.out.size()) {
    const ssize_t count = send_rest(connection.socket, connection.out, connection.out_sent_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      // Further requests wait in the kernel until this answer is read.
      const bool streaming = connection.state == Connection::State::kStreaming;
      loop_.change(connection.socket.get(), streaming ? EPOLLIN | EPOLLOUT : EPOLLOUT);
      return;
    }
    if (count < 0) {
      close_soon(id, connection);
      return;
    }
    connection.out_sent_bytes += static_cast<size_t>(count);
    set_deadline(id, connection, options_.idle_max);
  }
  connection.out.clear();
  connection.out_sent_bytes = 0;
  loop_.change(connection.socket.get(), EPOLLIN);
  finish_answer(id, connection);
}

// All of the answer is out: what comes next?
void HttpServer::finish_answer(Id id, Connection& connection) {
  using State = Connection::State;
  if (connection.state == State::kStreaming && connection.deadline) {
    // A quiet stream is no fault; its reader is given up when it does not take what is sent.
    loop_.cancel(*connection.deadline);
    connection.deadline.reset();
  }
  if (connection.state != State::kWriting) return;
  if (connection.ends) {
    connection.state = State::kLingering;
    shutdown(connection.socket.get(), SHUT_WR);
    set_deadline(id, connection, kLinger);
    return;
  }
  connection.state = State::kReading;
  set_deadline(id, connection,
               connection.parser.begun() ? options_.request_max : options_.idle_max);
  // The client may have sent its next request already. It is served from the loop, or a long
  // queue of them would nest as many calls.
  if (!connection.parser.begun()) return;
  loop_.post([alive = alive_, id] {
    HttpServer* const self = *alive;
    Connection* const waiting = self == nullptr ? nullptr : self->find(id);
    if (waiting != nullptr && waiting->state == State::kReading) self->serve_waiting(id, *waiting);
  });
}

void HttpServer::set_deadline(Id id, Connection& connection, Duration after) {
  if (connection.closing) return;
  if (connection.deadline) loop_.cancel(*connection.deadline);
  connection.deadline = loop_.at(now() + after, [this, id] { on_deadline(id); });
}

void HttpServer::on_deadline(Id id) {
  Connection* const connection = find(id);
  if (connection == nullptr) return;
  connection->deadline.reset();
  if (connection->state != Connection::State::kReading || !connection->parser.begun()) {
    close_soon(id, *connection);
    return;
  }
  fail(*connection, {408, "the request did not arrive in time"});
  set_deadline(id, *connection, options_.idle_max);
  flush(id, *connection);
}

// Callers up the stack may still hold the connection, so it goes in the next turn.
void HttpServer::close_soon(Id id, Connection& connection) {
  if (connection.closing) return;
  connection.closing = true;
  loop_.unwatch(connection.socket.get());
  loop_.post([alive = alive_, id] {
    if (HttpServer* const self = *alive) self->close(id);
  });
}

void HttpServer::close(Id id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  if (at->second.deadline) loop_.cancel(*at->second.deadline);
  if (!at->second.closing) loop_.unwatch(at->second.socket.get());
  const bool streaming = at->second.state == Connection::State::kStreaming;
  connections_.erase(at);
  if (streaming && callbacks_.on_stream_closed) callbacks_.on_stream_closed(HttpStreamId{id});
}

}  // namespace pliant
