#include "pliant/runtime/http_response.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

// The response in `text`, however it arrives; the connection ends after it.
Result<HttpResponse> parse(std::string_view text, HttpLimits limits = {}, size_t pace = SIZE_MAX) {
  HttpResponseParser parser(limits);
  while (!text.empty()) {
    const std::string_view part = text.substr(0, pace);
    text.remove_prefix(part.size());
    auto response = parser.feed(part);
    if (!response) return response.error();
    if (response->has_value()) return std::move(**response);
  }
  return parser.end();
}

TEST(HttpResponse, BodyByLength) {
  const auto response =
      parse("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Other:  a b \r\n\r\nTRUEmore");
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "TRUE");
  EXPECT_EQ(response->fields.at("x-other"), "a b");
}

TEST(HttpResponse, BodyInChunksWithATrailer) {
  const auto response = parse(
      "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n");
  ASSERT_TRUE(response.ok()) << response.error().message;
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->body, "abc0123456789");
}

TEST(HttpResponse, BodyUntilTheEnd) {
  EXPECT_EQ(parse("HTTP/1.0 200 OK\r\n\r\nFALSE").value().body, "FALSE");
  EXPECT_EQ(parse("HTTP/1.1 200\r\n\r\n").value().body, "");
}

TEST(HttpResponse, WithoutABody) {
  HttpResponseParser parser;
  const auto response = parser.feed("HTTP/1.1 204 No Content\r\n\r\n");
  ASSERT_TRUE(response.ok() && response->has_value());
  EXPECT_EQ((*response)->status, 204);
}

TEST(HttpResponse, WhatComesBeforeItIsSkipped) {
  EXPECT_EQ(parse("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
                .value()
                .status,
            200);
}

TEST(HttpResponse, ThePaceOfArrivalChangesNothing) {
  for (const std::string_view text :
       {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nall the rest"}) {
    for (size_t pace = 1; pace < 8; ++pace)
      EXPECT_EQ(parse(text, {}, pace).value(), parse(text).value()) << text << pace;
  }
}

TEST(HttpResponse, NonsenseIsRefused) {
  for (const std::string_view text :
       {"", "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 20\r\n\r\n", "HTTP/1.1 0200 OK\r\n\r\n",
        "HTTP/2 200\r\n\r\n", "\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nTRUE",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nTRUE", "HTTP/1.1 200 OK\r\nHost"})
    EXPECT_FALSE(parse(text).ok()) << text;
}

TEST(HttpResponse, LimitsHold) {
  constexpr HttpLimits kLimits{.head_bytes_max = 64, .body_bytes_max = 8};
  EXPECT_TRUE(parse("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678", kLimits).ok());
  EXPECT_FALSE(parse("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789", kLimits).ok());
  EXPECT_FALSE(parse("HTTP/1.1 200 OK\r\n\r\n123456789", kLimits).ok());
  const std::string chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_FALSE(parse(chunks + "8\r\n12345678\r\n1\r\n9\r\n0\r\n\r\n", kLimits).ok());
  EXPECT_FALSE(parse(chunks + "ffffffffffffffff\r\n", kLimits).ok());
  EXPECT_FALSE(parse(chunks + "0\r\n" + std::string(100, 'x'), kLimits).ok());
  EXPECT_FALSE(parse("HTTP/1.1 200 OK\r\n" + std::string(100, 'x'), kLimits, 1).ok());
}

}  // namespace
}  // namespace pliant
