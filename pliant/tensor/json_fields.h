// Inside of the JSON forms of this folder: reads a document strictly. Every field has a path that
// messages begin with ("rules[3].shard[0].dim"); what is not known, not of its type or beyond its
// limits is an error, and so is a field that is there twice. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"

namespace pliant::tensor {

using Json = nlohmann::ordered_json;

// Parses the whole text; `what` it is begins the message of an error.
Result<Json> parse_json(std::string_view text, const char* what);

// A value and where it stands.
class JsonField {
 public:
  JsonField(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  // "path: text"
  Error fault(std::string_view text) const;

  // Of an object.
  Status check_keys(std::initializer_list<std::string_view> known) const;
  bool has(const char* key) const;
  Result<JsonField> get(const char* key) const;
  // Calls `read` with the field if it is there.
  Status read_optional(const char* key, const std::function<Status(const JsonField&)>& read) const;

  Result<uint64_t> number(uint64_t least, uint64_t most) const;
  Result<double> real() const;
  Result<std::string> text() const;
  Result<bool> flag() const;
  // Calls `read` for each element.
  Status each(const std::function<Status(const JsonField&)>& read) const;
  Result<std::vector<std::string>> texts() const;
  Result<std::vector<uint64_t>> numbers(uint64_t most) const;

 private:
  const Json* value_;
  std::string path_;
};

// Assigns what a Result has, or returns its error.
template <typename T, typename Value>
Status assign(T& to, Result<Value> from) {
  if (!from) return from.error();
  to = static_cast<T>(std::move(*from));
  return {};
}

}  // namespace pliant::tensor
