// One HTTP/1.1 request of ours and its response, on the caller's loop: it never blocks, and it ends
// by its deadline whatever the other side does.
//
// Everything is called, and the callback runs, with the loop held; so is the destructor, which
// gives up on a response that has not come.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/http_response.h"
#include "pliant/transport/socket.h"

namespace pliant {

// Where a service answers: "http://169.254.169.254", "http://127.0.0.1:8080/prefix".
struct HttpBase {
  Address address;
  std::string host;    // as it is written, for the header field Host
  std::string prefix;  // of every path; empty or "/like/this"
};

// Names are not looked up, for that would block: the host is numeric, or "localhost".
Result<HttpBase> parse_http_base(const std::string& url);

struct HttpAsk {
  std::string method = "GET";
  std::string target = "/";  // below the prefix of the base
  std::map<std::string, std::string> fields = {};
  bool operator==(const HttpAsk&) const = default;
};

class HttpFetch final {
 public:
  using Done = std::function<void(Result<HttpResponse>)>;

  // `done` is called once, in a later turn of the loop; it may destroy this.
  HttpFetch(Loop& loop, const HttpBase& base, const HttpAsk& ask, Instant deadline, Done done,
            HttpLimits limits = {});
  ~HttpFetch();
  HttpFetch(const HttpFetch&) = delete;
  HttpFetch& operator=(const HttpFetch&) = delete;

 private:
  void on_ready();
  Status send_more();
  Result<std::optional<HttpResponse>> receive_more();
  void stop();
  void finish(Result<HttpResponse> result);

  Loop& loop_;
  Done done_;
  Fd socket_;
  bool watching_ = false;
  bool connected_ = false;
  std::string unsent_;
  HttpResponseParser parser_;
  std::optional<Loop::TimerId> timer_;
};

}  // namespace pliant
