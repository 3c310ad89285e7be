#include "pliant/runtime/http_fetch.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

namespace pliant {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr std::string_view kHttpPort = ":80";

std::string request_text(const HttpBase& base, const HttpAsk& ask) {
  std::string text =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: pliant\r\nConnection: close\r\n",
                  ask.method, base.prefix, ask.target, base.host);
  for (const auto& [name, value] : ask.fields) text += fmt::format("{}: {}\r\n", name, value);
  if (ask.method != "GET") text += "Content-Length: 0\r\n";
  return text + "\r\n";
}

bool has_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  return colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos;
}

}  // namespace

Result<HttpBase> parse_http_base(const std::string& url) {
  const auto wrong = [&](std::string_view why) {
    return invalid(fmt::format("'{}' {}; write http://ADDRESS[:PORT][/PATH]", url, why));
  };
  if (!url.starts_with(kScheme)) return wrong("does not begin with http://");
  for (const char c : url) {
    if (c <= ' ' || c >= '\x7f') return wrong("holds a character that has no place in a URL");
  }
  if (url.find_first_of("?#@") != std::string::npos) return wrong("has more than a path");
  const size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  HttpBase base;
  base.host = url.substr(kScheme.size(), slash - kScheme.size());
  base.prefix = url.substr(slash);
  while (base.prefix.ends_with('/')) base.prefix.pop_back();
  if (base.host.empty()) return wrong("names no host");
  std::string endpoint = base.host;
  if (!has_port(endpoint)) endpoint += kHttpPort;
  if (endpoint.starts_with("localhost:")) endpoint.replace(0, 9, "127.0.0.1");
  const auto address = parse_endpoint(endpoint);
  if (!address) return wrong("does not name its host by a numeric address");
  base.address = *address;
  return base;
}

HttpFetch::HttpFetch(Loop& loop, const HttpBase& base, const HttpAsk& ask, Instant deadline,
                     Done done, HttpLimits limits)
    : loop_(loop), done_(std::move(done)), unsent_(request_text(base, ask)), parser_(limits) {
  auto socket = connect_tcp(base.address);
  if (!socket) {
    timer_ = loop_.at(now(), [this, error = socket.error()] { finish(error); });
    return;
  }
  socket_ = std::move(*socket);
  watching_ = true;
  loop_.watch(socket_.get(), EPOLLOUT, [this](uint32_t) { on_ready(); });
  timer_ = loop_.at(deadline, [this] {
    finish(
        Error{Code::kTimeout, connected_ ? "no answer in time" : "no connection in time", {}, {}});
  });
}

HttpFetch::~HttpFetch() {
  loop_.assert_held();
  stop();
}

void HttpFetch::stop() {
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  if (std::exchange(watching_, false)) loop_.unwatch(socket_.get());
  socket_.reset();
}

// Whoever is called may destroy this, so nothing is touched after it.
void HttpFetch::finish(Result<HttpResponse> result) {
  stop();
  const Done done = std::move(done_);
  done(std::move(result));
}

void HttpFetch::on_ready() {
  if (!connected_) {
    if (const Status status = connect_status(socket_); !status) return finish(status.error());
    connected_ = true;
  }
  if (!unsent_.empty()) {
    if (const Status status = send_more(); !status) return finish(status.error());
    if (unsent_.empty()) loop_.change(socket_.get(), EPOLLIN);
    return;
  }
  auto response = receive_more();
  if (!response) return finish(response.error());
  if (response->has_value()) finish(std::move(**response));
}

Status HttpFetch::send_more() {
  const ssize_t count = send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (count < 0) return system_error("cannot send the request");
  unsent_.erase(0, static_cast<size_t>(count));
  return {};
}

Result<std::optional<HttpResponse>> HttpFetch::receive_more() {
  std::array<char, 4096> room;
  const ssize_t count = recv(socket_.get(), room.data(), room.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<HttpResponse>();
  if (count < 0) return system_error("the connection broke");
  if (count > 0) return parser_.feed({room.data(), static_cast<size_t>(count)});
  auto response = parser_.end();
  if (!response) return response.error();
  return std::optional(std::move(*response));
}

}  // namespace pliant
