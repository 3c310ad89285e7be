// The parser of HTTP responses and what is made of a metadata service's answers: whatever the
// bytes, they end within their limits, and the pace of arrival changes nothing.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pliant/base/check.h"
#include "pliant/runtime/http_response.h"
#include "pliant/runtime/revocation.h"

namespace {

using pliant::HttpResponse;

constexpr pliant::HttpLimits kLimits{.head_bytes_max = 512, .body_bytes_max = 256};

// Nothing: it is broken or incomplete.
std::optional<HttpResponse> parse(std::string_view text, size_t pace) {
  pliant::HttpResponseParser parser(kLimits);
  while (!text.empty()) {
    const std::string_view part = text.substr(0, pace);
    text.remove_prefix(part.size());
    auto response = parser.feed(part);
    if (!response) return std::nullopt;
    if (response->has_value()) return std::move(**response);
  }
  auto response = parser.end();
  if (!response) return std::nullopt;
  return std::move(*response);
}

void check(const pliant::RevocationAnswer& answer) {
  PLIANT_CHECK(answer.text.size() < 400, "a reason is short");
  for (const char c : answer.text) PLIANT_CHECK(c >= ' ' && c < '\x7f', "a reason is printable");
  PLIANT_CHECK(answer.text.empty() == (answer.kind == pliant::RevocationAnswer::Kind::kNothing),
               "whatever matters has a reason");
}

void interpret(const HttpResponse& response) {
  check(interpret_aws_action(response));
  check(interpret_gcp_preempted(response));
  check(interpret_gcp_maintenance(response));
  check(interpret_azure_events(response, ""));
  check(interpret_azure_events(response, "vm_0"));
  for (const auto provider :
       {pliant::CloudProvider::kAws, pliant::CloudProvider::kGcp, pliant::CloudProvider::kAzure}) {
    pliant::RevocationInquiry inquiry(provider);
    for (int round = 0; round < 3; ++round) {
      const pliant::HttpAsk ask = inquiry.question();
      for (const auto& [name, value] : ask.fields)
        PLIANT_CHECK(value.find_first_of("\r\n") == std::string::npos, "no field holds a line end");
      check(inquiry.hear(response).answer);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto at_once = parse(text, size + 1);
  const auto by_byte = parse(text, 1);
  PLIANT_CHECK(at_once == by_byte, "the pace of arrival changes nothing");
  if (at_once) {
    PLIANT_CHECK(at_once->body.size() <= kLimits.body_bytes_max, "a body has a limit");
    PLIANT_CHECK(at_once->status >= 200, "a response is final");
    interpret(*at_once);
  }
  // The same without the frame, which mutations break too easily.
  interpret({.status = 200, .fields = {}, .body = std::string(text)});
  return 0;
}
