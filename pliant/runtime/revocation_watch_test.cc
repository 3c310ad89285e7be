// The client and the watch against real sockets on loopback.
#include "pliant/runtime/revocation_watch.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "pliant/runtime/http_server.h"
#include "pliant/runtime/test_http.h"

namespace pliant {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

class RevocationWatchTest : public testing::Test {
 protected:
  ~RevocationWatchTest() override {
    thread_.run([this] {
      watch_.reset();
      fetch_.reset();
      server_.reset();
      if (deaf_.valid()) deaf_.reset();
    });
  }
  // Serves what `answer` says, to anybody who asks with GET.
  void serve(std::function<HttpAnswer(const HttpRequest&)> answer) {
    HttpOptions options;
    options.address = *parse_address("127.0.0.1", 0);
    options.token = "unused";
    options.public_paths = {"/computeMetadata/v1/instance/preempted",
                            "/computeMetadata/v1/instance/maintenance-event", "/a/b"};
    thread_.run([&] {
      auto server = HttpServer::open(
          thread_.loop, options,
          {.on_request = std::move(answer), .on_stream_closed = [](HttpStreamId) {}});
      ASSERT_TRUE(server.ok()) << server.error().message;
      server_ = std::move(*server);
    });
  }
  // Listens and never answers.
  std::string deaf() {
    deaf_ = std::move(*listen_tcp(*parse_address("127.0.0.1", 0)));
    return to_string(*local_address(deaf_));
  }
  static HttpAnswer text(std::string body) {
    return {.status = 200,
            .type = "text/plain",
            .body = std::move(body),
            .fields = {},
            .on_stream = {}};
  }
  Result<HttpResponse> fetch(const std::string& url, const HttpAsk& ask, Duration longest = 30s) {
    std::optional<Result<HttpResponse>> got;
    thread_.run([&] {
      fetch_ = std::make_unique<HttpFetch>(
          thread_.loop, *parse_http_base(url), ask, now() + longest,
          [&](Result<HttpResponse> response) { got.emplace(std::move(response)); });
    });
    thread_.wait_until([&] { return got.has_value(); });
    return std::move(*got);
  }
  void watch(const std::string& url) {
    thread_.run([&] {
      watch_ = std::make_unique<RevocationWatch>(
          thread_.loop, RevocationWatch::Options{CloudProvider::kGcp, *parse_http_base(url), 1ms},
          [this](const std::string& reason) {
            watch_.reset();
            reasons_.push_back(reason);
          });
    });
  }

  LoopThread thread_;
  std::unique_ptr<HttpServer> server_;
  Fd deaf_;
  std::unique_ptr<HttpFetch> fetch_;
  std::unique_ptr<RevocationWatch> watch_;
  std::vector<std::string> reasons_;
};

TEST_F(RevocationWatchTest, FetchesWithItsFieldsBelowThePrefix) {
  serve([](const HttpRequest& request) {
    return text(request.method + " " + request.path + " " + request.query.at("q") + " " +
                std::string(request.field("x-mine")) + " " + std::string(request.field("host")));
  });
  const std::string url = "http://" + server_->endpoint() + "/a";
  const auto response = fetch(url, {"GET", "/b?q=1", {{"X-Mine", "yes"}}});
  ASSERT_TRUE(response.ok()) << response.error().message;
  EXPECT_EQ(response->body, "GET /a/b 1 yes " + server_->endpoint());
}

TEST_F(RevocationWatchTest, NobodyListens) {
  const std::string endpoint = deaf();
  deaf_.reset();
  EXPECT_FALSE(fetch("http://" + endpoint, {}).ok());
}

TEST_F(RevocationWatchTest, NoAnswerEndsAtTheDeadline) {
  EXPECT_EQ(fetch("http://" + deaf(), {}, 20ms).code(), Code::kTimeout);
}

TEST_F(RevocationWatchTest, TellsOnceWhenTheMachineWillBeTakenAway) {
  int asked = 0;
  serve([&](const HttpRequest& request) {
    if (request.path.ends_with("maintenance-event")) return text("NONE");
    return text(++asked < 3 ? "FALSE" : "TRUE");
  });
  watch("http://" + server_->endpoint());
  thread_.wait_until([&] { return !reasons_.empty(); });
  EXPECT_EQ(reasons_, std::vector<std::string>{"GCP preempts it"});
  EXPECT_EQ(asked, 3);
}

TEST_F(RevocationWatchTest, ASilentServiceIsAskedAgain) {
  int asked = 0;
  serve(
      [&](const HttpRequest&) { return ++asked < 4 ? http_error(503, "not yet") : text("TRUE"); });
  watch("http://" + server_->endpoint());
  thread_.wait_until([&] { return !reasons_.empty(); });
  EXPECT_EQ(asked, 4);
}

TEST_F(RevocationWatchTest, EndsInTheMiddleOfAQuestion) {
  watch("http://" + deaf());
  thread_.run([this] { watch_.reset(); });
  EXPECT_TRUE(reasons_.empty());
}

}  // namespace
}  // namespace pliant
