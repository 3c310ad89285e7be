// The parser of HTTP requests: whatever the bytes, it returns within its limits, and says the same
// whether they arrive at once or one by one.
#include <cstdint>
#include <string_view>
#include <variant>

#include "pliant/base/check.h"
#include "pliant/runtime/http_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr pliant::HttpLimits kLimits{.head_bytes_max = 512, .body_bytes_max = 64};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  pliant::HttpParser at_once(kLimits);
  at_once.feed(text);
  const auto first = at_once.next();
  if (const auto* request = std::get_if<pliant::HttpRequest>(&first)) {
    PLIANT_CHECK(request->path.starts_with('/'), "a request has a path");
    PLIANT_CHECK(request->body.size() <= kLimits.body_bytes_max, "a body has a limit");
  } else if (const auto* fault = std::get_if<pliant::HttpFault>(&first)) {
    PLIANT_CHECK(fault->status >= 400 && fault->status < 600, "a fault is one");
    PLIANT_CHECK(!fault->message.empty(), "a fault says why");
  }
  pliant::HttpParser by_byte(kLimits);
  for (size_t i = 0; i < size; ++i) {
    by_byte.feed(text.substr(i, 1));
    const auto answer = by_byte.next();
    if (std::holds_alternative<pliant::HttpParser::NeedMore>(answer)) continue;
    PLIANT_CHECK(answer.index() == first.index(), "the pace of arrival changes nothing");
    break;
  }
  return 0;
}
