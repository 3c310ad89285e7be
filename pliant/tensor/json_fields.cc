#include "pliant/tensor/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace pliant::tensor {
namespace {

// Deep nesting has no use here, and costs the library memory.
constexpr int kDepthMax = 16;

// Follows the parser and remembers the first thing that a Json value would hide.
class Watcher {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDepthMax && fault_.empty()) fault_ = "nested too deeply";
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys_.empty()) keys_.pop_back();
    if (event == Json::parse_event_t::key && !keys_.empty()) {
      const auto key = parsed.get<std::string>();
      if (!keys_.back().insert(key).second && fault_.empty())
        fault_ = fmt::format("the field '{}' is there twice in one object", key.substr(0, 80));
    }
    return fault_.empty();
  }
  const std::string& fault() const { return fault_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string fault_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const char* what) {
  Watcher watcher;
  try {
    Json json = Json::parse(text.begin(), text.end(), std::ref(watcher), true);
    if (!watcher.fault().empty()) return invalid(fmt::format("{}: {}", what, watcher.fault()));
    return json;
  } catch (const Json::exception& error) {
    // The library's sentence says line, column and what was expected.
    std::string reason = error.what();
    if (const size_t close = reason.find("] "); close != std::string::npos)
      reason = reason.substr(close + 2);
    return invalid(fmt::format("{} is no JSON: {}", what, reason.substr(0, 300)));
  }
}

Error JsonField::fault(std::string_view text) const {
  return invalid(fmt::format("{}: {}", path_.empty() ? "the document" : path_, text));
}

Status JsonField::check_keys(std::initializer_list<std::string_view> known) const {
  if (!value_->is_object())
    return fault(fmt::format("expected an object, found {}", value_->type_name()));
  for (const auto& item : value_->items())
    if (std::ranges::find(known, item.key()) == known.end())
      return fault(fmt::format("there is no field '{}'; there are {}", item.key().substr(0, 80),
                               fmt::join(known, ", ")));
  return {};
}

bool JsonField::has(const char* key) const { return value_->contains(key); }

Result<JsonField> JsonField::get(const char* key) const {
  const auto found = value_->find(key);
  if (found == value_->end()) return fault(fmt::format("the field '{}' is missing", key));
  return JsonField(*found, path_.empty() ? key : path_ + "." + key);
}

Status JsonField::read_optional(const char* key,
                                const std::function<Status(const JsonField&)>& read) const {
  if (!has(key)) return {};
  const auto field = get(key);
  if (!field) return field.error();
  return read(*field);
}

Result<uint64_t> JsonField::number(uint64_t least, uint64_t most) const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() < least ||
      value_->get<uint64_t>() > most)
    return fault(fmt::format("expected a whole number from {} to {}, found {}", least, most,
                             value_->is_number() ? value_->dump() : value_->type_name()));
  return value_->get<uint64_t>();
}

Result<double> JsonField::real() const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>()))
    return fault(fmt::format("expected a number, found {}", value_->type_name()));
  return value_->get<double>();
}

Result<std::string> JsonField::text() const {
  if (!value_->is_string())
    return fault(fmt::format("expected a text, found {}", value_->type_name()));
  return value_->get<std::string>();
}

Result<bool> JsonField::flag() const {
  if (!value_->is_boolean())
    return fault(fmt::format("expected true or false, found {}", value_->type_name()));
  return value_->get<bool>();
}

Status JsonField::each(const std::function<Status(const JsonField&)>& read) const {
  if (!value_->is_array())
    return fault(fmt::format("expected a list, found {}", value_->type_name()));
  for (size_t i = 0; i < value_->size(); ++i)
    PLIANT_TRY(read(JsonField((*value_)[i], fmt::format("{}[{}]", path_, i))));
  return {};
}

Result<std::vector<std::string>> JsonField::texts() const {
  std::vector<std::string> list;
  PLIANT_TRY(each(
      [&](const JsonField& field) -> Status { return assign(list.emplace_back(), field.text()); }));
  return list;
}

Result<std::vector<uint64_t>> JsonField::numbers(uint64_t most) const {
  std::vector<uint64_t> list;
  PLIANT_TRY(each([&](const JsonField& field) -> Status {
    return assign(list.emplace_back(), field.number(0, most));
  }));
  return list;
}

}  // namespace pliant::tensor
