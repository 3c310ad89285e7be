#include "pliant/runtime/control_api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "pliant/runtime/test_http.h"

namespace pliant {
namespace {

using std::chrono_literals::operator""ms;

class ControlApiTest : public testing::Test {
 protected:
  ControlApiTest() {
    status_.job = "train";
    status_.state = JobState::kRunning;
    status_.epoch = 2;
    status_.target = 1;
    status_.members.push_back({0, {0, 0, 1}, "a", 4711, 5});
  }
  ~ControlApiTest() override {
    thread_.run([this] { api_.reset(); });
  }
  void open(Duration heartbeat = std::chrono::hours(1)) {
    thread_.run([&] {
      ControlOptions options;
      options.http.address = *parse_address("127.0.0.1", 0);
      options.http.token = "secret";
      options.heartbeat = heartbeat;
      ControlBackend backend{.status = [this] { return report(); },
                             .wish = [this](const Wish& wish) { return grant(wish); }};
      auto api = ControlApi::open(thread_.loop, events_, std::move(backend), std::move(options));
      ASSERT_TRUE(api.ok()) << api.error().message;
      api_ = std::move(*api);
    });
  }
  Result<JobReport> report() {
    thread_.loop.assert_held();
    if (refusal_) return *refusal_;
    return status_;
  }
  Status grant(const Wish& wish) {
    thread_.loop.assert_held();
    if (refusal_) return *refusal_;
    wishes_.push_back(wish);
    return {};
  }
  static std::string request(const std::string& method, const std::string& path,
                             const std::string& body = "", const std::string& more = "") {
    return method + " " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n" + more +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  struct Reply {
    int status = 0;
    std::string head;
    std::string body;
  };
  Reply ask(const std::string& text) {
    RawClient client(api_->endpoint());
    client.send(text);
    const std::string whole = client.receive_answer();
    const size_t end = std::min(whole.find("\r\n\r\n"), whole.size());
    const std::string status = whole.size() > 12 ? whole.substr(9, 3) : "0";
    return {std::stoi(status), whole.substr(0, end), whole.substr(std::min(whole.size(), end + 4))};
  }
  Reply get(const std::string& path) { return ask(request("GET", path)); }
  std::vector<Wish> wishes() {
    std::vector<Wish> copy;
    thread_.run([&] { copy = wishes_; });
    return copy;
  }
  void happen(const std::string& message) {
    thread_.run([&] {
      events_.append({.id = 0, .time_ms = 1, .kind = "view", .message = message, .details = ""});
    });
  }

  LoopThread thread_;
  EventLog events_{4};
  JobReport status_;
  std::optional<Error> refusal_;
  std::vector<Wish> wishes_;
  std::unique_ptr<ControlApi> api_;
};

TEST_F(ControlApiTest, TellsTheState) {
  open();
  EXPECT_EQ(*parse_report(get("/v1/status").body), status_);
  EXPECT_EQ(get("/v1/view").body, view_json(status_) + "\n");
  EXPECT_EQ(get("/v1/members").body, members_json(status_) + "\n");
  EXPECT_EQ(get("/metrics").body, metrics_text(status_));
  EXPECT_NE(get("/metrics").head.find("Content-Type: text/plain; version=0.0.4"),
            std::string::npos);
}

TEST_F(ControlApiTest, EverythingButHealthNeedsTheToken) {
  open();
  for (const ControlRoute& route : ControlApi::routes()) {
    const int status = ask(route.method + " " + route.path + " HTTP/1.1\r\nHost: x\r\n\r\n").status;
    EXPECT_EQ(status, route.path == "/healthz" ? 200 : 401) << route.path;
  }
  EXPECT_TRUE(wishes().empty());
}

TEST_F(ControlApiTest, PassesOnWishes) {
  open();
  const auto size = ask(request("PUT", "/v1/size", "{\"size\": 4}"));
  EXPECT_EQ(size.status, 202);
  EXPECT_EQ(size.body, "{\"target\":4}\n");
  EXPECT_EQ(ask(request("POST", "/v1/drain", "{\"host\": \"a\"}")).status, 202);
  const auto peer = ask(request("POST", "/v1/drain", "{\"peer\": \"0.2#1\"}"));
  EXPECT_EQ(peer.body, "{\"draining\":{\"peer\":\"0.2#1\"}}\n");
  EXPECT_EQ(ask(request("POST", "/v1/stop")).status, 202);
  const std::vector<Wish> expected = {ResizeWish{4}, DrainWish{"a", {}}, DrainWish{"", {0, 2, 1}},
                                      StopWish{}};
  EXPECT_EQ(wishes(), expected);
}

TEST_F(ControlApiTest, RefusalsHaveTheRightStatusAndSayWhy) {
  open();
  for (const char* body : {"", "4", "{\"size\": 0.5}", "{\"sise\": 4}", "{\"size\": -4}"})
    EXPECT_EQ(ask(request("PUT", "/v1/size", body)).status, 400) << body;
  for (const char* body : {"", "{\"host\": 4}", "{\"peer\": \"zero\"}"})
    EXPECT_EQ(ask(request("POST", "/v1/drain", body)).status, 400) << body;
  EXPECT_TRUE(wishes().empty());
  thread_.run([this] { refusal_ = invalid("9 is above the maximum of 8"); });
  const auto refused = ask(request("PUT", "/v1/size", "{\"size\": 9}"));
  EXPECT_EQ(refused.status, 409);
  EXPECT_EQ(refused.body, "{\"error\":\"9 is above the maximum of 8\"}\n");
  thread_.run([this] { refusal_ = Error{Code::kOverloaded, "not now", {}, {}}; });
  EXPECT_EQ(ask(request("POST", "/v1/stop")).status, 503);
  for (const char* path : {"/v1/status", "/v1/view", "/v1/members", "/metrics"})
    EXPECT_EQ(get(path).status, 503) << path;
  EXPECT_EQ(get("/v2/status").status, 404);
  EXPECT_EQ(get("/\xff").status, 400);
  EXPECT_EQ(get("/%ff").status, 404);
  const auto wrong = ask(request("DELETE", "/v1/size"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_NE(wrong.head.find("Allow: PUT"), std::string::npos) << wrong.head;
}

TEST_F(ControlApiTest, EventsAsAnArray) {
  open();
  EXPECT_EQ(get("/v1/events?follow=0").body, "[]\n");
  for (const char* message : {"a", "b", "c"}) happen(message);
  const auto all = nlohmann::json::parse(get("/v1/events?follow=0").body);
  EXPECT_EQ(all.size(), 3u);
  const auto some = nlohmann::json::parse(get("/v1/events?follow=0&since=2").body);
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0]["message"], "c");
  EXPECT_EQ(some[0]["id"], 3);
  for (const char* query : {"?follow=2", "?since=x", "?since=-1", "?follow=0&since="})
    EXPECT_EQ(get(std::string("/v1/events") + query).status, 400) << query;
}

TEST_F(ControlApiTest, EventsAsAStreamThatCanBeTakenUpAgain) {
  open();
  happen("a");
  RawClient reader(api_->endpoint());
  reader.send(request("GET", "/v1/events"));
  const std::string begin = reader.receive_until("\"message\":\"a\"}\n\n");
  EXPECT_NE(begin.find("Content-Type: text/event-stream\r\n"), std::string::npos);
  EXPECT_NE(begin.find("id: 1\nevent: view\ndata: {"), std::string::npos);
  happen("b");
  EXPECT_NE(reader.receive_until("\"message\":\"b\"}\n\n").find("id: 2\n"), std::string::npos);
  // Another one that saw the first event; the header counts more than the query.
  RawClient again(api_->endpoint());
  again.send(request("GET", "/v1/events?since=0", "", "Last-Event-ID: 1\r\n"));
  const std::string resumed = again.receive_until("\"message\":\"b\"}\n\n");
  EXPECT_EQ(resumed.find("id: 1\n"), std::string::npos) << resumed;
  thread_.run([this] { EXPECT_EQ(api_->stream_count(), 2u); });
}

TEST_F(ControlApiTest, AGapInTheStreamIsTold) {
  open();
  for (const char* message : {"a", "b", "c", "d", "e", "f"}) happen(message);
  RawClient late(api_->endpoint());
  late.send(request("GET", "/v1/events?since=1"));
  const std::string text = late.receive_until("\"message\":\"f\"}\n\n");
  EXPECT_LT(text.find("event: gap\n"), text.find("\"message\":\"c\"")) << text;
}

TEST_F(ControlApiTest, QuietStreamsGetHeartbeatsAndDeadOnesAreForgotten) {
  open(5ms);
  {
    RawClient reader(api_->endpoint());
    reader.send(request("GET", "/v1/events"));
    reader.receive_until(": alive\n\n");
    reader.receive_until(": alive\n\n");
  }
  thread_.wait_until([this] { return api_->stream_count() == 0; });
  happen("nobody listens");
}

TEST_F(ControlApiTest, StreamsEndWithTheApi) {
  open();
  RawClient reader(api_->endpoint());
  reader.send(request("GET", "/v1/events"));
  reader.receive_until("retry: 1000\n\n\r\n");
  happen("last");
  thread_.run([this] { api_.reset(); });
  EXPECT_TRUE(reader.receive_all().ends_with("\r\n0\r\n\r\n"));
  happen("after");
}

// The paths and methods of docs/openapi.yaml, by its indentation.
std::vector<ControlRoute> described_routes() {
  std::ifstream file(PLIANT_SOURCE_DIR "/docs/openapi.yaml");
  std::vector<ControlRoute> routes;
  std::string line;
  std::string path;
  bool in_paths = false;
  while (std::getline(file, line)) {
    if (!line.empty() && line[0] != ' ') in_paths = line == "paths:";
    if (!in_paths || !line.ends_with(":")) continue;
    const std::string word = line.substr(0, line.size() - 1);
    if (word.starts_with("  /")) path = word.substr(2);
    for (const char* method : {"get", "put", "post", "delete", "patch", "head", "options"}) {
      if (word != std::string("    ") + method) continue;
      std::string upper = method;
      for (char& c : upper) c = static_cast<char>(c - 'a' + 'A');
      routes.push_back({upper, path});
    }
  }
  return routes;
}

TEST_F(ControlApiTest, TheDescriptionIsOfWhatIsServed) {
  open();
  const auto described = described_routes();
  const auto served = ControlApi::routes();
  for (const ControlRoute& route : served)
    EXPECT_NE(std::ranges::find(described, route), described.end())
        << route.method << " " << route.path << " is served, but not described";
  for (const ControlRoute& route : described) {
    EXPECT_NE(std::ranges::find(served, route), served.end())
        << route.method << " " << route.path << " is described, but not served";
    const int status = ask(request(route.method, route.path)).status;
    EXPECT_TRUE(status != 404 && status != 405 && status != 0) << route.path << " " << status;
  }
}

}  // namespace
}  // namespace pliant
