#include "cli/http_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "pliant/base/text.h"
#include "pliant/runtime/http_text.h"

namespace pliant::cli {
namespace {

constexpr size_t kHeadBytesMax = size_t{64} << 10;
constexpr size_t kReplyBytesMax = size_t{256} << 20;
constexpr size_t kChunkLineBytesMax = 64;

Error broken(const std::string& what) { return invalid("the answer is no HTTP: " + what); }

// False when the time has passed.
Result<bool> wait_for(const Fd& socket, short events, Instant deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now()).count();
    pollfd waited{.fd = socket.get(), .events = events, .revents = 0};
    const int ready = poll(&waited, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000)));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return system_error("cannot wait for the answer");
  }
}

Error too_late() { return {Code::kTimeout, "the job does not answer in time", {}, {}}; }

Result<Fd> connected(const std::string& endpoint, Instant deadline) {
  const auto address = parse_endpoint(endpoint);
  if (!address.ok()) return address.error();
  auto socket = connect_tcp(*address);
  if (!socket.ok()) return socket;
  const auto ready = wait_for(*socket, POLLOUT, deadline);
  if (!ready.ok()) return ready.error();
  if (!*ready) return too_late();
  PLIANT_TRY(connect_status(*socket));
  return socket;
}

Status send_all(const Fd& socket, std::string_view text, Instant deadline) {
  while (!text.empty()) {
    const auto ready = wait_for(socket, POLLOUT, deadline);
    if (!ready.ok()) return ready.error();
    if (!*ready) return too_late();
    const ssize_t count = send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0) return system_error("cannot send the request");
    text.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

// What has arrived; empty at the end of the connection. Waits no longer than the deadline.
Result<std::string> receive_some(const Fd& socket) {
  std::array<char, 16384> room{};
  while (true) {
    const ssize_t count = recv(socket.get(), room.data(), room.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("the connection broke");
    return std::string(room.data(), static_cast<size_t>(count));
  }
}

struct Head {
  int status = 0;
  std::map<std::string, std::string> fields;
};

Result<Head> parse_head(std::string_view text) {
  Head head;
  if (!text.starts_with("HTTP/1.") || text.size() < 12) return broken("no status line");
  const auto read = std::from_chars(text.data() + 9, text.data() + 12, head.status);
  if (read.ec != std::errc{} || head.status < 100) return broken("no status");
  for (size_t at = text.find(kLineEnd); at != std::string_view::npos;) {
    const size_t next = text.find(kLineEnd, at + 2);
    const std::string_view line = text.substr(at + 2, next == text.npos ? next : next - at - 2);
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return broken("a header field without a colon");
    const size_t value = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
    head.fields[lower(line.substr(0, colon))] = line.substr(value);
    at = next;
  }
  return head;
}

Result<std::unique_ptr<HttpBody>> body_of(const Head& head) {
  using Framing = HttpBody::Framing;
  const auto coding = head.fields.find("transfer-encoding");
  if (coding != head.fields.end()) {
    if (lower(coding->second) != "chunked") return broken("a transfer coding that is not known");
    return std::make_unique<HttpBody>(Framing::kChunks, 0);
  }
  const auto length = head.fields.find("content-length");
  if (length == head.fields.end()) return std::make_unique<HttpBody>(Framing::kUntilEnd, 0);
  uint64_t bytes = 0;
  const char* const end = length->second.data() + length->second.size();
  const auto read = std::from_chars(length->second.data(), end, bytes);
  if (read.ec != std::errc{} || read.ptr != end) return broken("Content-Length is no number");
  return std::make_unique<HttpBody>(Framing::kLength, bytes);
}

std::string request_of(const HttpCall& call) {
  std::string text =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n",
                  call.method, call.target, call.endpoint, call.token);
  if (call.method != "GET")
    text +=
        fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  return text + "\r\n" + call.body;
}

}  // namespace

// Reads the line before a chunk; false if it is none.
bool HttpBody::take_chunk_line() {
  uint64_t size = 0;
  const std::string digits = line_.substr(0, line_.find(';'));
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
  if (read.ec != std::errc{} || read.ptr != digits.data() + digits.size() || size > (1ULL << 40))
    return false;
  line_.clear();
  ended_ = size == 0;
  in_chunk_ = !ended_;
  left_ = size + 2;
  return true;
}

Result<std::string> HttpBody::take(std::string_view bytes) {
  if (framing_ == Framing::kUntilEnd) return std::string(bytes);
  if (framing_ == Framing::kLength) {
    const std::string_view mine = bytes.substr(0, static_cast<size_t>(left_));
    left_ -= mine.size();
    return std::string(mine);
  }
  std::string content;
  while (!bytes.empty() && !ended_) {
    if (in_chunk_) {
      const std::string_view mine = bytes.substr(0, static_cast<size_t>(left_));
      bytes.remove_prefix(mine.size());
      // The last two bytes are the line end after the chunk.
      const uint64_t data = left_ > 2 ? left_ - 2 : 0;
      content += mine.substr(0, static_cast<size_t>(data));
      left_ -= mine.size();
      in_chunk_ = left_ > 0;
      continue;
    }
    const char c = bytes.front();
    bytes.remove_prefix(1);
    if (c == '\n') {
      if (!take_chunk_line()) return broken("a chunk without a length");
    } else if (c != '\r') {
      line_ += c;
      if (line_.size() > kChunkLineBytesMax) return broken("a chunk without a length");
    }
  }
  return content;
}

HttpExchange::HttpExchange(Fd socket, int status, std::unique_ptr<HttpBody> body, std::string early)
    : socket_(std::move(socket)),
      status_(status),
      body_(std::move(body)),
      early_(std::move(early)) {}

Result<std::unique_ptr<HttpExchange>> HttpExchange::open(const HttpCall& call, Duration longest) {
  const Instant deadline = now() + longest;
  auto socket = connected(call.endpoint, deadline);
  if (!socket.ok()) return socket.error();
  PLIANT_TRY(send_all(*socket, request_of(call), deadline));
  std::string received;
  size_t end = std::string::npos;
  while ((end = received.find(kHeadEnd)) == std::string::npos) {
    if (received.size() > kHeadBytesMax) return broken("its head has no end");
    const auto ready = wait_for(*socket, POLLIN, deadline);
    if (!ready.ok()) return ready.error();
    if (!*ready) return too_late();
    const auto more = receive_some(*socket);
    if (!more.ok()) return more.error();
    if (more->empty()) return invalid("the connection was closed without an answer");
    received += *more;
  }
  const auto head = parse_head(std::string_view(received).substr(0, end));
  if (!head.ok()) return head.error();
  auto body = body_of(*head);
  if (!body.ok()) return body.error();
  return std::unique_ptr<HttpExchange>(new HttpExchange(
      std::move(*socket), head->status, std::move(*body), received.substr(end + kHeadEnd.size())));
}

Result<std::string> HttpExchange::read(Duration longest) {
  if (!early_.empty()) {
    const std::string early = std::exchange(early_, "");
    return body_->take(early);
  }
  if (ended()) return std::string();
  const auto ready = wait_for(socket_, POLLIN, now() + longest);
  if (!ready.ok()) return ready.error();
  if (!*ready) return std::string();
  const auto more = receive_some(socket_);
  if (!more.ok()) return more.error();
  if (!more->empty()) return body_->take(*more);
  closed_ = true;
  if (!body_->whole_at_end()) return invalid("the connection broke off in the middle");
  return std::string();
}

Result<HttpReply> http_call(const HttpCall& call, Duration longest) {
  const Instant deadline = now() + longest;
  const auto exchange = HttpExchange::open(call, longest);
  if (!exchange.ok()) return exchange.error();
  HttpReply reply{(*exchange)->status(), ""};
  // What came with the head counts even when the body has ended with it.
  do {
    const auto more = (*exchange)->read(deadline - now());
    if (!more.ok()) return more.error();
    reply.body += *more;
    if (reply.body.size() > kReplyBytesMax) return invalid("the answer is too long");
    if (more->empty() && !(*exchange)->ended() && now() >= deadline) return too_late();
  } while (!(*exchange)->ended());
  return reply;
}

}  // namespace pliant::cli
