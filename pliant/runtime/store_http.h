// The store of a host as people and tools see it over HTTP: versions and tensors as JSON, elements
// as bytes in both directions (docs/STORE.md). Touches nothing but the vault; called with whatever
// guards it held.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/runtime/http_server.h"
#include "pliant/runtime/store_client.h"
#include "pliant/store/vault.h"

namespace pliant {

// The most bytes of a tensor in one answer; more are asked for range by range. And in one request.
inline constexpr uint64_t kStoreAnswerBytesMax = uint64_t{64} << 20;

// GET /v1/store, /v1/store/STEP, /v1/store/STEP/TENSOR, where STEP may be "newest"; PUT
// /v1/store/STEP/TENSOR?dtype=f32&shape=4,6, which makes a version of this one tensor.
HttpAnswer answer_store(store::Vault& vault, const std::string& host, const HttpRequest& request);
// For HttpServer::Callbacks::on_head: what is wrong with a PUT can be told before its body comes.
std::optional<HttpAnswer> refuse_store_body(const store::Vault& vault, const HttpRequest& head);

// "0:4,8:16", ":" for all of a dimension, "3:" and ":3"; for a tensor of that shape.
Result<store::Box> parse_box(std::string_view text, const store::TensorInfo& info);
// "newest" or a number.
Result<uint64_t> parse_step(std::string_view text);

// A version without its elements, for lists.
struct VersionOutline {
  struct Piece {
    store::Box box;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
  };
  struct Tensor {
    store::TensorInfo info;
    std::vector<Piece> pieces;
  };
  std::string host;
  uint64_t step = 0;
  uint32_t epoch = 0;
  uint64_t parts = 0;
  uint64_t memory_bytes = 0;
  std::vector<Tensor> tensors;
};
// Of what that host has.
VersionOutline outline_of(std::string host, const StoreLook& look);
// One JSON object.
nlohmann::ordered_json to_json(const VersionOutline& version);
nlohmann::ordered_json to_json(const std::string& host, const StoreSummary& version);

}  // namespace pliant
