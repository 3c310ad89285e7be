#include "pliant/runtime/http_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "pliant/base/text.h"
#include "pliant/runtime/http_text.h"

namespace pliant {
namespace {

bool is_token_character(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return letter || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_token_character);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    const char decoded = static_cast<char>(high * 16 + low);
    if (decoded == '\0') return std::nullopt;
    result += decoded;
    i += 2;
  }
  return result;
}

std::optional<HttpFault> read_target(std::string_view target, HttpRequest& request) {
  const HttpFault fault{400, "the request's target is no path"};
  const bool visible = std::ranges::all_of(target, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!target.starts_with('/') || !visible) return fault;
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  const auto path = percent_decoded(target.substr(0, mark));
  if (!path) return fault;
  request.path = *path;
  std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest = rest.substr(std::min(rest.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    const auto name = percent_decoded(pair.substr(0, equals));
    const auto value = percent_decoded(pair.substr(std::min(pair.size(), equals + 1)));
    if (!name || !value) return HttpFault{400, "the request's query is not well-formed"};
    if (!name->empty()) request.query[*name] = *value;
  }
  return std::nullopt;
}

std::optional<HttpFault> read_request_line(std::string_view line, HttpRequest& request) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !is_token(line.substr(0, first)))
    return HttpFault{400, "the request does not begin with METHOD PATH HTTP/1.1"};
  request.method = line.substr(0, first);
  const std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (version.starts_with("HTTP/")) return HttpFault{505, "only HTTP/1.1 is spoken here"};
    return HttpFault{400, "the request does not begin with METHOD PATH HTTP/1.1"};
  }
  request.keep_alive = version == "HTTP/1.1";
  return read_target(line.substr(first + 1, last - first - 1), request);
}

std::optional<HttpFault> read_field(std::string_view line, HttpRequest& request) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    return HttpFault{400, "a header field is not of the form Name: value"};
  const std::string_view value = trimmed(line.substr(colon + 1), kFieldBlanks);
  for (const char c : value) {
    if ((c >= 0 && c < ' ' && c != '\t') || c == '\x7f')
      return HttpFault{400, "a header field holds a control character"};
  }
  const std::string name = lower(line.substr(0, colon));
  const auto [at, added] = request.fields.emplace(name, value);
  if (added) return std::nullopt;
  if (name == "content-length" || name == "host" || name == "authorization" ||
      name == "transfer-encoding")
    return HttpFault{400, fmt::format("the header field {} comes twice", name)};
  at->second += ", " + std::string(value);
  return std::nullopt;
}

std::optional<HttpFault> read_head(std::string_view head, HttpRequest& request) {
  bool is_first = true;
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find(kLineEnd));
    head = head.substr(std::min(head.size(), line.size() + kLineEnd.size()));
    if (line.find_first_of("\r\n") != std::string_view::npos)
      return HttpFault{400, "lines end in CR LF"};
    auto fault = is_first ? read_request_line(line, request) : read_field(line, request);
    if (fault) return fault;
    is_first = false;
  }
  const std::string connection = lower(request.field("connection"));
  if (connection == "close") request.keep_alive = false;
  if (connection == "keep-alive") request.keep_alive = true;
  // Required of HTTP/1.1; a request without it was made by hand or by a broken client.
  if (request.keep_alive && !request.fields.contains("host"))
    return HttpFault{400, "the header field Host is missing"};
  return std::nullopt;
}

// The length of the body, or why there cannot be one.
std::variant<size_t, HttpFault> body_length(const HttpRequest& request, size_t body_bytes_max) {
  if (request.fields.contains("transfer-encoding"))
    return HttpFault{411, "send the body with a Content-Length"};
  const auto at = request.fields.find("content-length");
  if (at == request.fields.end()) return size_t{0};
  const std::string& text = at->second;
  const bool digits =
      !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return HttpFault{400, "Content-Length is no number"};
  size_t length = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), length);
  if (read.ec != std::errc{} || length > body_bytes_max)
    return HttpFault{413, fmt::format("the body is larger than {} bytes", body_bytes_max)};
  return length;
}

}  // namespace

std::string_view HttpRequest::field(const std::string& name) const {
  const auto at = fields.find(name);
  return at == fields.end() ? std::string_view() : std::string_view(at->second);
}

// Reads the head at the beginning of the buffer into head_, if it has arrived.
std::optional<HttpFault> HttpParser::take_head() {
  // Empty lines before a request are left over from a client that ends its bodies with one.
  while (buffer_.starts_with(kLineEnd)) buffer_.erase(0, kLineEnd.size());
  const size_t from = scanned_bytes_ - std::min(scanned_bytes_, kHeadEnd.size() - 1);
  const size_t end = buffer_.find(kHeadEnd, from);
  scanned_bytes_ = buffer_.size();
  if (std::min(end, buffer_.size()) > limits_.head_bytes_max)
    return HttpFault{431, fmt::format("the head is larger than {} bytes", limits_.head_bytes_max)};
  if (end == std::string::npos) return std::nullopt;
  HttpRequest request;
  if (auto fault = read_head(std::string_view(buffer_).substr(0, end), request)) return fault;
  const auto length = body_length(request, limits_.body_bytes_max);
  if (const auto* fault = std::get_if<HttpFault>(&length)) return *fault;
  body_bytes_ = std::get<size_t>(length);
  buffer_.erase(0, end + kHeadEnd.size());
  scanned_bytes_ = 0;
  head_ = std::move(request);
  return std::nullopt;
}

HttpParser::Answer HttpParser::next() {
  if (!head_) {
    if (auto fault = take_head()) return *fault;
    if (!head_) return NeedMore{};
  }
  if (buffer_.size() < body_bytes_) {
    const bool expects = lower(head_->field("expect")) == "100-continue";
    return NeedMore{.expects_leave = expects && buffer_.empty()};
  }
  HttpRequest request = std::move(*head_);
  head_.reset();
  if (buffer_.size() == body_bytes_) {
    request.body = std::exchange(buffer_, "");
  } else {
    request.body = buffer_.substr(0, body_bytes_);
    buffer_.erase(0, body_bytes_);
  }
  return request;
}

const char* http_reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 206: return "Partial Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 416: return "Range Not Satisfiable";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    case 507: return "Insufficient Storage";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
  }
}

}  // namespace pliant
