#include "pliant/runtime/http_request.h"

#include <gtest/gtest.h>

#include <vector>

namespace pliant {
namespace {

HttpParser::Answer parse(std::string_view text) {
  HttpParser parser;
  parser.feed(text);
  return parser.next();
}

int fault_of(std::string_view text) {
  const auto answer = parse(text);
  const auto* fault = std::get_if<HttpFault>(&answer);
  if (fault == nullptr) return 0;
  EXPECT_FALSE(fault->message.empty());
  return fault->status;
}

constexpr const char* kPut =
    "PUT /v1/size?a=b%20c&d&e=1=2&=x HTTP/1.1\r\n"
    "Host: localhost:80\r\n"
    "X-Two:  one \t\r\n"
    "x-two: two\r\n"
    "content-LENGTH: 11\r\n"
    "\r\n"
    "{\"size\": 4}";

TEST(HttpRequest, IsReadAsWritten) {
  const auto answer = parse(kPut);
  ASSERT_TRUE(std::holds_alternative<HttpRequest>(answer));
  const auto& request = std::get<HttpRequest>(answer);
  EXPECT_EQ(request.method, "PUT");
  EXPECT_EQ(request.path, "/v1/size");
  const std::map<std::string, std::string> query = {{"a", "b c"}, {"d", ""}, {"e", "1=2"}};
  EXPECT_EQ(request.query, query);
  EXPECT_EQ(request.field("x-two"), "one, two");
  EXPECT_EQ(request.field("missing"), "");
  EXPECT_EQ(request.body, "{\"size\": 4}");
  EXPECT_TRUE(request.keep_alive);
}

TEST(HttpRequest, ArrivesByteByByteAndSeveralAtOnce) {
  HttpParser parser;
  const std::string text = kPut;
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_TRUE(std::holds_alternative<HttpParser::NeedMore>(parser.next())) << i;
    parser.feed(text.substr(i, 1));
    EXPECT_TRUE(parser.begun());
  }
  EXPECT_TRUE(std::holds_alternative<HttpRequest>(parser.next()));
  EXPECT_FALSE(parser.begun());
  parser.feed(text + "\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(std::get<HttpRequest>(parser.next()).path, "/v1/size");
  EXPECT_EQ(std::get<HttpRequest>(parser.next()).path, "/b");
  EXPECT_TRUE(std::holds_alternative<HttpParser::NeedMore>(parser.next()));
}

TEST(HttpRequest, KeepsAliveAsToldTo) {
  const auto keeps = [](const std::string& text) {
    return std::get<HttpRequest>(parse(text)).keep_alive;
  };
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n"));
}

TEST(HttpRequest, FaultsHaveTheRightStatus) {
  const std::vector<std::pair<std::string, int>> cases = {
      {"nonsense\r\n\r\n", 400},
      {"GET  HTTP/1.1\r\n\r\n", 400},
      {"G@T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /?a=%4 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nName : y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\x01\r\n\r\n", 400},
      {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
      {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x10\r\n\r\n", 400},
      {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n", 400},
      {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
      {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n", 413},
      {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 413},
      {"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411},
  };
  for (const auto& [text, status] : cases) EXPECT_EQ(fault_of(text), status) << text;
}

TEST(HttpRequest, SizesAreBoundedBeforeTheyAreKept) {
  const std::string line = "GET / HTTP/1.1\r\nHost: x\r\nA: ";
  const size_t room = HttpLimits{}.head_bytes_max - line.size();
  EXPECT_EQ(fault_of(line + std::string(room, 'a') + "\r\n\r\n"), 0);
  EXPECT_EQ(fault_of(line + std::string(room + 1, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(fault_of(std::string(HttpLimits{}.head_bytes_max + 1, 'a')), 431);
  const auto whole =
      parse("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n" + std::string(65536, 'b'));
  EXPECT_EQ(std::get<HttpRequest>(whole).body.size(), 65536u);
}

TEST(HttpRequest, AsksForLeaveOnce) {
  HttpParser parser;
  parser.feed("PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_TRUE(std::get<HttpParser::NeedMore>(parser.next()).expects_leave);
  parser.feed("a");
  EXPECT_FALSE(std::get<HttpParser::NeedMore>(parser.next()).expects_leave);
  parser.feed("b");
  EXPECT_EQ(std::get<HttpRequest>(parser.next()).body, "ab");
}

}  // namespace
}  // namespace pliant
