#include "pliant/runtime/http_server.h"

#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <vector>

#include "pliant/runtime/test_http.h"

namespace pliant {
namespace {

using std::chrono_literals::operator""ms;

class HttpServerTest : public testing::Test {
 protected:
  ~HttpServerTest() override {
    thread_.run([this] { server_.reset(); });
  }
  void open(HttpOptions options = {}) {
    options.address = *parse_address("127.0.0.1", 0);
    options.token = "secret";
    options.public_paths = {"/public"};
    thread_.run([&] {
      auto server = HttpServer::open(
          thread_.loop, options,
          {.on_request = [this](const HttpRequest& request) { return answer(request); },
           .on_stream_closed = [this](HttpStreamId) { ++closed_; }});
      ASSERT_TRUE(server.ok()) << server.error().message;
      server_ = std::move(*server);
    });
  }
  HttpAnswer answer(const HttpRequest& request) {
    thread_.loop.assert_held();
    ++served_;
    if (request.path == "/missing") return http_error(404, "nothing");
    HttpAnswer answer{.status = 200,
                      .type = "text/plain",
                      .body = request.method + " " + request.path + " " + request.body,
                      .fields = {{"X-Extra", "1"}},
                      .on_stream = {}};
    if (request.path == "/large") answer.body = std::string(16 << 20, 'x');
    if (request.path == "/stream")
      answer.on_stream = [this](HttpStreamId id) { streams_.push_back(id); };
    return answer;
  }
  static std::string get(const std::string& path, const std::string& more = "") {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n" + more +
           "\r\n";
  }
  int served() {
    int count = 0;
    thread_.run([&] { count = served_; });
    return count;
  }
  std::string ask(const std::string& request) {
    RawClient client(server_->endpoint());
    client.send(request);
    return client.receive_answer();
  }

  LoopThread thread_;
  std::unique_ptr<HttpServer> server_;
  int served_ = 0;
  int closed_ = 0;
  std::vector<HttpStreamId> streams_;
};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  open();
  RawClient client(server_->endpoint());
  client.send(get("/a"));
  EXPECT_EQ(client.receive_answer(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\n"
            "X-Extra: 1\r\nContent-Length: 7\r\nConnection: keep-alive\r\n\r\nGET /a ");
  client.send(
      "PUT /b HTTP/1.1\r\nHost: x\r\nauthorization: bearer secret\r\n"
      "Content-Length: 3\r\n\r\nabc");
  EXPECT_NE(client.receive_answer().find("PUT /b abc"), std::string::npos);
  client.send(get("/c", "Connection: close\r\n"));
  EXPECT_NE(client.receive_all().find("Connection: close\r\n\r\nGET /c "), std::string::npos);
}

TEST_F(HttpServerTest, ServesQueuedRequestsInOrder) {
  open();
  RawClient client(server_->endpoint());
  std::string all;
  for (int i = 0; i < 500; ++i) all += get("/" + std::to_string(i));
  client.send(all);
  for (int i = 0; i < 500; ++i) {
    const std::string expected = "GET /" + std::to_string(i) + " ";
    EXPECT_TRUE(client.receive_answer().ends_with(expected)) << expected;
  }
}

TEST_F(HttpServerTest, TheTokenIsNeededExceptForPublicPaths) {
  open();
  for (const char* field : {"", "Authorization: Bearer wrong!\r\n", "Authorization: Bearer \r\n",
                            "Authorization: Basic secret\r\n", "Authorization: secret\r\n",
                            "Authorization: Bearer secret2\r\n", "X: Bearer secret\r\n"}) {
    const std::string reply = ask(std::string("GET /a HTTP/1.1\r\nHost: x\r\n") + field + "\r\n");
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 401 Unauthorized\r\n")) << reply;
    EXPECT_NE(reply.find("WWW-Authenticate: Bearer\r\n"), std::string::npos) << reply;
    EXPECT_NE(reply.find("{\"error\":"), std::string::npos) << reply;
    EXPECT_EQ(reply.find("secret"), std::string::npos) << reply;
  }
  EXPECT_EQ(served(), 0);
  EXPECT_TRUE(ask("GET /public HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask("PUT /public HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 401"));
}

TEST_F(HttpServerTest, FaultsAreAnsweredAndEndTheConnection) {
  open();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"nonsense\r\n\r\n", "400"},
      {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + std::string(70000, 'b'),
       "413"},
      {"GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(40000, 'a'), "431"},
  };
  for (const auto& [request, status] : cases) {
    RawClient client(server_->endpoint());
    client.send(request);
    const std::string reply = client.receive_all();
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 " + status)) << reply;
    EXPECT_NE(reply.find("{\"error\":"), std::string::npos) << reply;
  }
  EXPECT_EQ(served(), 0);
}

TEST_F(HttpServerTest, ABodyMayWaitForLeave) {
  open();
  RawClient client(server_->endpoint());
  client.send(
      "PUT /b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
      "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abc");
  EXPECT_TRUE(client.receive_answer().ends_with("PUT /b abc"));
}

TEST_F(HttpServerTest, OfBodiesNothingIsKeptThatWillNotBeServed) {
  HttpOptions options;
  options.limits.body_bytes_max = 1 << 20;
  options.bodies_bytes_max = 3 << 19;
  open(options);
  const auto put = [](const std::string& token) {
    return "PUT /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token +
           "\r\nContent-Length: 1048576\r\n\r\n";
  };
  // A stranger is answered before the body comes.
  EXPECT_TRUE(ask(put("wrong")).starts_with("HTTP/1.1 401"));
  // So is one too many: the first body has half of the room and more.
  RawClient first(server_->endpoint());
  first.send(put("secret") + "x");
  // Its head has been read when an answer to a later request is there.
  EXPECT_TRUE(ask(get("/a")).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask(put("secret")).starts_with("HTTP/1.1 503"));
  first.send(std::string((1 << 20) - 1, 'y'));
  EXPECT_TRUE(first.receive_answer().starts_with("HTTP/1.1 200"));
  EXPECT_EQ(served(), 2);
}

TEST_F(HttpServerTest, ALargeAnswerArrivesWhole) {
  open();
  RawClient client(server_->endpoint());
  client.send(get("/large") + get("/after"));
  EXPECT_TRUE(client.receive_answer().ends_with(std::string(16 << 20, 'x')));
  EXPECT_TRUE(client.receive_answer().ends_with("GET /after "));
}

TEST_F(HttpServerTest, StreamsGoOnUntilEitherSideEnds) {
  open();
  RawClient reader(server_->endpoint());
  reader.send(get("/stream"));
  EXPECT_NE(reader.receive_until("GET /stream \r\n").find("Transfer-Encoding: chunked"),
            std::string::npos);
  thread_.run([this] { server_->send(streams_[0], "more"); });
  EXPECT_EQ(reader.receive_until("more\r\n"), "4\r\nmore\r\n");
  {
    RawClient leaver(server_->endpoint());
    leaver.send(get("/stream"));
    leaver.receive_until("GET /stream \r\n");
  }
  thread_.wait_until([this] { return closed_ == 1; });
  thread_.run([this] {
    server_->send(streams_[1], "to nobody");
    server_.reset();
  });
  EXPECT_EQ(reader.receive_all(), "0\r\n\r\n");
  thread_.run([this] { EXPECT_EQ(closed_, 1); });
}

TEST_F(HttpServerTest, AReaderThatDoesNotReadIsDropped) {
  open({.address = {}, .token = {}, .public_paths = {}, .limits = {}, .unread_bytes_max = 100'000});
  RawClient reader(server_->endpoint());
  reader.send(get("/stream"));
  reader.receive_until("GET /stream \r\n");
  const std::string much(50'000, 'x');
  // The kernel's buffers fill first; then ours has its bound.
  thread_.wait_until([&] {
    server_->send(streams_[0], much);
    return closed_ == 1;
  });
  thread_.run([this] { EXPECT_EQ(server_->connection_count(), 0u); });
}

TEST_F(HttpServerTest, SlowRequestsEnd) {
  open({.address = {}, .token = {}, .public_paths = {}, .limits = {}, .request_max = 20ms});
  RawClient in_head(server_->endpoint());
  in_head.send("GET / HTT");
  EXPECT_TRUE(in_head.receive_all().starts_with("HTTP/1.1 408"));
  RawClient in_body(server_->endpoint());
  in_body.send(
      "PUT / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
      "Content-Length: 3\r\n\r\nab");
  EXPECT_TRUE(in_body.receive_all().starts_with("HTTP/1.1 408"));
}

TEST_F(HttpServerTest, IdleConnectionsEndButQuietStreamsDoNot) {
  open({.address = {}, .token = {}, .public_paths = {}, .limits = {}, .idle_max = 20ms});
  RawClient idle(server_->endpoint());
  EXPECT_EQ(idle.receive_all(), "");
  // On a busy machine a request may come too late, so it is made until it is served.
  std::string reply;
  while (reply.empty()) {
    RawClient used(server_->endpoint());
    used.send(get("/a"));
    reply = used.receive_all();
  }
  EXPECT_TRUE(reply.ends_with("GET /a ")) << reply;
  std::unique_ptr<RawClient> reader;
  for (reply.clear(); reply.empty();) {
    reader = std::make_unique<RawClient>(server_->endpoint());
    reader->send(get("/stream"));
    reply = reader->receive_until("GET /stream \r\n");
  }
  RawClient another(server_->endpoint());
  EXPECT_EQ(another.receive_all(), "");  // the idle time has passed
  thread_.run([this] { server_->send(streams_.back(), "still here"); });
  EXPECT_EQ(reader->receive_until("here\r\n"), "a\r\nstill here\r\n");
}

TEST_F(HttpServerTest, ADripOfBytesDoesNotExtendTheDeadline) {
  open({.address = {}, .token = {}, .public_paths = {}, .limits = {}, .request_max = 50ms});
  RawClient client(server_->endpoint());
  client.send("GET / HTTP/1.1\r\nA: ");
  // Each byte is sent as soon as the server may have read the one before, until it has had enough.
  for (int i = 0; i < 10'000; ++i) {
    client.send("a");
    size_t count = 0;
    thread_.run([&] { count = server_->connection_count(); });
    pollfd poll_fd{.fd = client.socket().get(), .events = POLLIN, .revents = 0};
    if (poll(&poll_fd, 1, 1) > 0) break;
  }
  EXPECT_TRUE(client.receive_until("\r\n").starts_with("HTTP/1.1 408"));
}

TEST_F(HttpServerTest, ConnectionsAreBoundedAndStrangersMakeRoom) {
  open({.address = {}, .token = {}, .public_paths = {}, .limits = {}, .connections_max = 3});
  std::list<RawClient> strangers;
  for (int i = 0; i < 3; ++i) {
    strangers.emplace_back(server_->endpoint());
    thread_.wait_until([&] { return server_->connection_count() == strangers.size(); });
  }
  // Three who know the token take the places of three who have said nothing.
  std::list<RawClient> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back(server_->endpoint());
    readers.back().send(get("/stream"));
    readers.back().receive_until("GET /stream \r\n");
  }
  for (RawClient& stranger : strangers) EXPECT_EQ(stranger.receive_all(), "");
  RawClient late(server_->endpoint());
  EXPECT_TRUE(late.receive_all().starts_with("HTTP/1.1 503"));
  thread_.run([this] { EXPECT_EQ(server_->connection_count(), 3u); });
}

TEST_F(HttpServerTest, APortInUseIsSaid) {
  open();
  thread_.run([this] {
    HttpOptions options;
    options.address = *parse_endpoint(server_->endpoint());
    options.token = "x";
    const auto second = HttpServer::open(thread_.loop, options, {});
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find("in use"), std::string::npos);
  });
}

}  // namespace
}  // namespace pliant
