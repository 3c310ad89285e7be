// An HTTP/1.1 request as a value, and the parser that makes it out of bytes as they arrive.
//
// Strict, because leniency is where servers and proxies disagree: lines end in CRLF, no folded
// lines, one Content-Length, no transfer codings (411 asks for a length instead). Sizes are checked
// before anything is kept. Pure; any thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace pliant {

struct HttpRequest {
  std::string method;                         // "GET"
  std::string path;                           // "/v1/status", percent-decoded
  std::map<std::string, std::string> query;   // percent-decoded; the last of a name counts
  std::map<std::string, std::string> fields;  // header fields; names in lower case
  std::string body;
  bool keep_alive = true;

  // The value of a header field (name in lower case) or an empty string.
  std::string_view field(const std::string& name) const;
};

struct HttpLimits {
  size_t head_bytes_max = size_t{16} << 10;
  size_t body_bytes_max = size_t{64} << 10;
};

// Why a request cannot be served; the connection ends after it.
struct HttpFault {
  int status = 400;
  std::string message;
};

class HttpParser final {
 public:
  struct NeedMore {
    // True once a head has arrived that asks for leave to send its body ("Expect: 100-continue").
    bool expects_leave = false;
  };
  using Answer = std::variant<NeedMore, HttpRequest, HttpFault>;

  explicit HttpParser(HttpLimits limits = {}) : limits_(limits) {}

  // Takes the bytes that have arrived. At most one request's worth more than the limits is kept.
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  // The next request, if it is complete; call again until NeedMore. After a fault, no more.
  Answer next();
  // The request whose body is still arriving, without it, and how long that will be; null if there
  // is none.
  const HttpRequest* head() const { return head_ ? &*head_ : nullptr; }
  size_t body_bytes() const { return head_ ? body_bytes_ : 0; }
  // True if a request has begun to arrive.
  bool begun() const { return !buffer_.empty() || head_; }

 private:
  std::optional<HttpFault> take_head();

  HttpLimits limits_;
  std::string buffer_;
  // Each byte is looked at once, however slowly a stranger sends them.
  size_t scanned_bytes_ = 0;
  std::optional<HttpRequest> head_;  // whose body is still arriving
  size_t body_bytes_ = 0;            // of that body, in all
};

// "Not Found"
const char* http_reason(int status);

}  // namespace pliant
