#include "pliant/runtime/store_http.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "pliant/store/test_vault.h"

namespace pliant {
namespace {

using store::box_of;
using store::counted;
using Json = nlohmann::json;

const std::vector<uint64_t> kShape = {4, 6};

class StoreHttpTest : public testing::Test {
 protected:
  StoreHttpTest() : vault_({}) {
    EXPECT_TRUE(
        vault_
            .add({7, 2, 0, 1}, store::part_of({counted("a/w", kShape, box_of({{0, 4}, {0, 3}})),
                                               counted("a/w", kShape, box_of({{0, 4}, {3, 6}})),
                                               counted("half", {4}, box_of({{0, 2}})),
                                               counted("step", {}, store::Box{}, 9)}))
            .ok());
  }
  HttpAnswer get(const std::string& path, const std::map<std::string, std::string>& query = {},
                 const std::string& range = "") {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    request.query = query;
    if (!range.empty()) request.fields["range"] = range;
    return answer_store(vault_, "host", request);
  }
  static std::string bytes_of(const store::Box& box) {
    const auto piece = counted("a/w", kShape, box);
    return {reinterpret_cast<const char*>(piece.elements.data()), piece.elements.size()};
  }

  store::Vault vault_;
};

TEST_F(StoreHttpTest, ListsVersionsAndTensors) {
  const Json list = Json::parse(get("/v1/store").body);
  EXPECT_EQ(list["host"], "host");
  ASSERT_EQ(list["versions"].size(), 1U);
  EXPECT_EQ(list["versions"][0]["step"], 7);
  EXPECT_EQ(list["versions"][0]["epoch"], 2);
  const Json version = Json::parse(get("/v1/store/newest").body);
  ASSERT_EQ(version["tensors"].size(), 3U);
  EXPECT_EQ(version["tensors"][0]["name"], "a/w");
  EXPECT_EQ(version["tensors"][0]["dtype"], "i32");
  EXPECT_EQ(version["tensors"][0]["shape"], Json({4, 6}));
  EXPECT_EQ(version["tensors"][0]["pieces"][1]["box"], Json({{0, 4}, {3, 6}}));
}

TEST_F(StoreHttpTest, GivesTensorsBoxesAndRanges) {
  const std::string all = bytes_of(box_of({{0, 4}, {0, 6}}));
  const HttpAnswer whole = get("/v1/store/7/a/w");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.type, "application/octet-stream");
  EXPECT_EQ(whole.body, all);
  EXPECT_EQ(get("/v1/store/7/a/w", {{"box", "1:3,2:5"}}).body, bytes_of(box_of({{1, 3}, {2, 5}})));
  EXPECT_EQ(get("/v1/store/7/a/w", {{"box", ":,5:"}}).body, bytes_of(box_of({{0, 4}, {5, 6}})));
  for (const auto& [begin, end] : {std::pair(0, 96), std::pair(3, 50), std::pair(95, 96)}) {
    const HttpAnswer part = get("/v1/store/7/a/w", {},
                                "bytes=" + std::to_string(begin) + "-" + std::to_string(end - 1));
    EXPECT_EQ(part.status, 206);
    EXPECT_EQ(part.body, all.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  }
  EXPECT_EQ(get("/v1/store/7/a/w", {}, "bytes=90-").body, all.substr(90));
  EXPECT_EQ(get("/v1/store/7/a/w", {}, "bytes=-5").body, all.substr(91));
  EXPECT_EQ(get("/v1/store/7/a/w", {}, "bytes=90-1000").body, all.substr(90));
  EXPECT_EQ(get("/v1/store/7/a/w", {}, "bytes=96-").status, 416);
  EXPECT_EQ(get("/v1/store/7/a/w", {}, "bytes=5-2").status, 200);  // no range: as if not there
  EXPECT_EQ(get("/v1/store/7/step").body, std::string("\x09\0\0\0", 4));
}

TEST_F(StoreHttpTest, WhatIsNotThereIsSaid) {
  EXPECT_EQ(get("/v1/store/8").status, 404);
  EXPECT_EQ(get("/v1/store/7/none").status, 404);
  EXPECT_EQ(get("/v1/stores").status, 404);
  EXPECT_EQ(get("/").status, 404);
  EXPECT_EQ(get("/v1/store/x").status, 400);
  const HttpAnswer half = get("/v1/store/7/half");
  EXPECT_EQ(half.status, 404);
  EXPECT_NE(half.body.find("[2:4]"), std::string::npos);
  for (const char* box : {"", "1:3", "0:5,0:6", "3:1,0:6", "a:b,0:6", "0:1,0:1,0:1", "0:1,0:1,"})
    EXPECT_EQ(get("/v1/store/7/a/w", {{"box", box}}).status, 400) << box;
  HttpRequest request;
  request.method = "PUT";
  request.path = "/v1/store";
  EXPECT_EQ(answer_store(vault_, "host", request).status, 405);
}

TEST_F(StoreHttpTest, PutsATensorAsAVersion) {
  const std::string body = bytes_of(box_of({{0, 4}, {0, 6}}));
  HttpRequest request;
  request.method = "PUT";
  request.path = "/v1/store/8/new/w";
  request.query = {{"dtype", "i32"}, {"shape", "4,6"}};
  request.fields["content-length"] = std::to_string(body.size());
  EXPECT_FALSE(refuse_store_body(vault_, request).has_value());
  request.body = body;
  EXPECT_EQ(answer_store(vault_, "host", request).status, 201);
  EXPECT_EQ(get("/v1/store/8/new/w").body, body);
  EXPECT_TRUE((*vault_.find(8))->verify().ok());
  // Once more, and over one that members wrote.
  EXPECT_EQ(refuse_store_body(vault_, request)->status, 409);
  request.path = "/v1/store/7/new/w";
  EXPECT_EQ(answer_store(vault_, "host", request).status, 409);
  // And while members write it.
  ASSERT_TRUE(
      vault_.add({9, 2, 0, 2}, store::part_of({counted("half", {4}, box_of({{0, 2}}))})).ok());
  request.path = "/v1/store/9/new/w";
  EXPECT_EQ(answer_store(vault_, "host", request).status, 409);
  request.path = "/v1/store/10/new/w";
  request.fields["content-length"] = "95";
  EXPECT_EQ(refuse_store_body(vault_, request)->status, 400);
  request.fields.erase("content-length");
  EXPECT_EQ(refuse_store_body(vault_, request)->status, 411);
  EXPECT_EQ(vault_.versions().size(), 2U);
}

}  // namespace
}  // namespace pliant
