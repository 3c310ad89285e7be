// An HTTP/1.1 response as a value, and the parser that makes it out of bytes as they arrive.
//
// The counterpart of http_request.h for the services that we ask. Its body may come by length, in
// chunks or until the connection ends. Sizes are checked before anything is kept. Pure; any thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "pliant/base/result.h"
#include "pliant/runtime/http_request.h"

namespace pliant {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> fields;  // header fields; names in lower case
  std::string body;
  bool operator==(const HttpResponse&) const = default;
};

// Reads one response. After an error, or once a response is complete, no more.
class HttpResponseParser final {
 public:
  explicit HttpResponseParser(HttpLimits limits = {}) : limits_(limits) {}

  // Takes the bytes that have arrived; the response, if it is complete with them.
  Result<std::optional<HttpResponse>> feed(std::string_view bytes);
  // The connection has ended: the response, if its body was to last until then.
  Result<HttpResponse> end();

 private:
  enum class State { kHead, kBody, kUntilEnd, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone };

  Status take_head();
  Status choose_framing();
  Status take_chunk_size();
  // True if the state in hand is through with what has arrived.
  Result<bool> advance();
  bool take_line(std::string& line);
  void take_body(size_t bytes_max);

  const HttpLimits limits_;
  State state_ = State::kHead;
  std::string buffer_;  // what is not taken in yet
  size_t scanned_bytes_ = 0;
  size_t left_ = 0;           // of the body, or of the chunk in hand
  size_t trailer_bytes_ = 0;  // so far
  HttpResponse response_;
};

}  // namespace pliant
