#include "cli/http_client.h"

#include <gtest/gtest.h>

#include "pliant/runtime/http_server.h"
#include "pliant/runtime/test_http.h"

namespace pliant::cli {
namespace {

using Framing = HttpBody::Framing;

// The content of a body that arrives in pieces of this size.
std::string content(HttpBody body, std::string_view bytes, size_t piece) {
  std::string all;
  while (!bytes.empty()) {
    const auto taken = body.take(bytes.substr(0, piece));
    if (!taken.ok()) return "fault";
    all += *taken;
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  return all + (body.ended() ? " ended" : "");
}

TEST(HttpBody, FramingIsUndoneWhateverThePieces) {
  const std::string chunks = "5\r\nhello\r\n1;x=y\r\n,\r\nA\r\n 123456789\r\n0\r\n\r\n";
  for (size_t piece = 1; piece <= chunks.size(); ++piece) {
    EXPECT_EQ(content({Framing::kChunks, 0}, chunks, piece), "hello, 123456789 ended") << piece;
    EXPECT_EQ(content({Framing::kLength, 4}, "abcdef", piece), "abcd ended") << piece;
    EXPECT_EQ(content({Framing::kUntilEnd, 0}, "abc", piece), "abc") << piece;
  }
  EXPECT_EQ(content({Framing::kChunks, 0}, "5\r\nhel", 100), "hel");
  for (const char* text : {"x\r\n", "\r\n", "-1\r\n", "5 5\r\n", "fffffffffffffffff\r\n"})
    EXPECT_EQ(content({Framing::kChunks, 0}, text, 1), "fault") << text;
  EXPECT_EQ(content({Framing::kChunks, 0}, std::string(100, '0'), 1), "fault");
}

TEST(HttpBody, KnowsWhetherItIsWhole) {
  HttpBody chunks(Framing::kChunks, 0);
  ASSERT_TRUE(chunks.take("1\r\na\r\n").ok());
  EXPECT_FALSE(chunks.whole_at_end());
  ASSERT_TRUE(chunks.take("0\r\n\r\n").ok());
  EXPECT_TRUE(chunks.whole_at_end());
  EXPECT_FALSE(HttpBody(Framing::kLength, 1).whole_at_end());
  EXPECT_TRUE(HttpBody(Framing::kLength, 0).whole_at_end());
  EXPECT_TRUE(HttpBody(Framing::kUntilEnd, 0).whole_at_end());
}

// Serves one connection: reads a request, sends this, and closes.
class OneAnswer final {
 public:
  explicit OneAnswer(std::string text)
      : listener_(std::move(*listen_tcp(*parse_address("127.0.0.1", 0)))),
        endpoint(to_string(*local_address(listener_))),
        thread_([this, text = std::move(text)] { serve(text); }) {}
  ~OneAnswer() { thread_.join(); }

 private:
  void serve(const std::string& text) {
    pollfd waited{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    if (poll(&waited, 1, 30'000) <= 0) return;
    const auto socket = accept_from(listener_);
    std::string request;
    while (request.find("\r\n\r\n") == std::string::npos) {
      waited = {.fd = socket->get(), .events = POLLIN, .revents = 0};
      char byte = 0;
      if (poll(&waited, 1, 30'000) <= 0 || recv(socket->get(), &byte, 1, 0) <= 0) return;
      request += byte;
    }
    EXPECT_EQ(send(socket->get(), text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  Fd listener_;

 public:
  const std::string endpoint;

 private:
  std::thread thread_;
};

Result<HttpReply> reply_to(const std::string& text) {
  const OneAnswer server(text);
  return http_call({.endpoint = server.endpoint, .token = "t"}, std::chrono::seconds(30));
}

TEST(HttpClient, ReadsEveryKindOfAnswer) {
  EXPECT_EQ(reply_to("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")->body, "ok");
  EXPECT_EQ(reply_to("HTTP/1.1 409 Conflict\r\nContent-Length:0\r\n\r\n")->status, 409);
  EXPECT_EQ(reply_to("HTTP/1.0 200 OK\r\n\r\nuntil the end")->body, "until the end");
  EXPECT_EQ(reply_to("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                     "2\r\nok\r\n0\r\n\r\n")
                ->body,
            "ok");
}

TEST(HttpClient, BrokenAnswersAreFaults) {
  for (const char* text :
       {"", "HTTP/1.1", "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 xyz OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no"})
    EXPECT_FALSE(reply_to(text).ok()) << text;
}

TEST(HttpClient, TalksToOurServer) {
  LoopThread thread;
  std::unique_ptr<HttpServer> server;
  std::string seen;
  thread.run([&] {
    HttpOptions options;
    options.address = *parse_address("127.0.0.1", 0);
    options.token = "secret";
    auto opened = HttpServer::open(thread.loop, options,
                                   {.on_request =
                                        [&](const HttpRequest& request) {
                                          seen = request.method + request.path + request.body;
                                          HttpAnswer answer;
                                          answer.body = std::string(3'000'000, 'x');
                                          return answer;
                                        },
                                    .on_stream_closed = {}});
    ASSERT_TRUE(opened.ok());
    server = std::move(*opened);
  });
  HttpCall call{.endpoint = server->endpoint(),
                .token = "secret",
                .method = "PUT",
                .target = "/v1/size",
                .body = "{}"};
  const auto reply = http_call(call, std::chrono::seconds(30));
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  EXPECT_EQ(reply->body.size(), 3'000'000u);
  thread.run([&] { EXPECT_EQ(seen, "PUT/v1/size{}"); });
  call.token = "wrong";
  EXPECT_EQ(http_call(call, std::chrono::seconds(30))->status, 401);
  thread.run([&] { server.reset(); });
  EXPECT_FALSE(http_call(call, std::chrono::seconds(30)).ok());
}

TEST(HttpClient, SilenceEndsAtTheDeadline) {
  const Fd listener = std::move(*listen_tcp(*parse_address("127.0.0.1", 0)));
  const auto reply = http_call({.endpoint = to_string(*local_address(listener)), .token = "t"},
                               std::chrono::milliseconds(20));
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.code(), Code::kTimeout);
}

}  // namespace
}  // namespace pliant::cli
