#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pliant/store/pickle.h"

namespace pliant::store {

const Pickle::Parts& Pickle::parts_of(const Node& node) {
  static const Parts kNothing;
  return node.parts != nullptr ? *node.parts : kNothing;
}

PickleKind PickleValue::kind() const { return pickle_->nodes_[id_].kind; }

std::optional<int64_t> PickleValue::integer() const {
  if (!is(PickleKind::kInt) && !is(PickleKind::kBool)) return std::nullopt;
  return pickle_->nodes_[id_].integer;
}

double PickleValue::real() const { return pickle_->nodes_[id_].real; }

std::optional<std::string_view> PickleValue::string() const {
  if (!is(PickleKind::kString)) return std::nullopt;
  return text();
}

std::string_view PickleValue::text() const {
  return is(PickleKind::kGlobal) ? std::string_view() : pickle_->nodes_[id_].text;
}

std::string PickleValue::global_name() const {
  if (is(PickleKind::kObject)) return callable().global_name();
  if (!is(PickleKind::kGlobal)) return "";
  const Pickle::Node& node = pickle_->nodes_[id_];
  return fmt::format("{}.{}", node.text, Pickle::parts_of(node).name);
}

bool PickleValue::is_global(std::string_view module, std::string_view name) const {
  const Pickle::Node& node = pickle_->nodes_[id_];
  return node.kind == PickleKind::kGlobal && node.text == module &&
         Pickle::parts_of(node).name == name;
}

size_t PickleValue::size() const {
  return is(PickleKind::kPersistent) ? 0 : Pickle::parts_of(pickle_->nodes_[id_]).items.size();
}

PickleValue PickleValue::item(size_t index) const {
  const auto& items = Pickle::parts_of(pickle_->nodes_[id_]).items;
  return {*pickle_, index < items.size() ? items[index] : 0};
}

size_t PickleValue::entries() const {
  return Pickle::parts_of(pickle_->nodes_[id_]).entries.size() / 2;
}

std::pair<PickleValue, PickleValue> PickleValue::entry(size_t index) const {
  const auto& entries = Pickle::parts_of(pickle_->nodes_[id_]).entries;
  const bool there = index < entries.size() / 2;
  return {PickleValue(*pickle_, there ? entries[2 * index] : 0),
          PickleValue(*pickle_, there ? entries[2 * index + 1] : 0)};
}

PickleValue PickleValue::find(std::string_view key) const {
  // The last one counts, as in Python.
  for (size_t i = entries(); i-- > 0;) {
    const auto [name, value] = entry(i);
    if (name.string() == key) return value;
  }
  return {*pickle_, 0};
}

PickleValue PickleValue::callable() const {
  return {*pickle_, Pickle::parts_of(pickle_->nodes_[id_]).callable};
}

PickleValue PickleValue::arguments() const {
  return {*pickle_, Pickle::parts_of(pickle_->nodes_[id_]).arguments};
}

PickleValue PickleValue::state() const {
  return {*pickle_, Pickle::parts_of(pickle_->nodes_[id_]).state};
}

PickleValue PickleValue::attribute(std::string_view name) const {
  const PickleValue state = this->state();
  if (state.is(PickleKind::kDict)) return state.find(name);
  if (state.is(PickleKind::kTuple) && state.size() == 2) {
    const PickleValue found = state.item(0).find(name);
    return found.is_none() ? state.item(1).find(name) : found;
  }
  return {*pickle_, 0};
}

PickleValue PickleValue::reference() const {
  return is(PickleKind::kPersistent) ? item(0) : PickleValue(*pickle_, 0);
}

namespace {

using Json = nlohmann::ordered_json;

// Python's integers have no bound; people read hexadecimal better than bytes.
std::string hexadecimal(std::string_view little_endian) {
  constexpr size_t kShownMax = 64;
  if (little_endian.size() > kShownMax) return fmt::format("<{} bytes>", little_endian.size());
  std::string text = "0x";
  for (size_t i = little_endian.size(); i-- > 0;)
    text += fmt::format("{:02x}", static_cast<uint8_t>(little_endian[i]));
  return text;
}

// What a pickle calls text need not be UTF-8, as JSON's is.
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const PickleValue& value, PickleWalk& walk, size_t depth);

Json array_of(const PickleValue& value, PickleWalk& walk, size_t depth) {
  Json array = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    array.push_back(json_of(value.item(i), walk, depth + 1));
    if (array.back() == "...") break;
  }
  return array;
}

// A key that is a structure has no good name; to write it out would escape the text of keys in
// keys again and again, which doubles it each time.
std::string key_text(const PickleValue& key, size_t index, PickleWalk& walk, size_t depth) {
  if (key.is(PickleKind::kString)) return std::string(key.text());
  if (key.size() + key.entries() > 0 || key.is(PickleKind::kObject))
    return fmt::format("<key {}>", index);
  return dumped(json_of(key, walk, depth));
}

Json dict_of(const PickleValue& value, PickleWalk& walk, size_t depth) {
  Json object = Json::object();
  for (size_t i = 0; i < value.entries(); ++i) {
    const auto [key, item] = value.entry(i);
    if (!walk.enter(depth, key.text().size())) break;
    object[key_text(key, i, walk, depth + 1)] = json_of(item, walk, depth + 1);
  }
  return object;
}

Json object_of(const PickleValue& value, PickleWalk& walk, size_t depth) {
  Json object = {{"object", value.global_name()}};
  if (value.arguments().size() > 0)
    object["arguments"] = json_of(value.arguments(), walk, depth + 1);
  if (value.size() > 0) object["items"] = array_of(value, walk, depth);
  if (value.entries() > 0) object["entries"] = dict_of(value, walk, depth);
  if (!value.state().is_none()) object["state"] = json_of(value.state(), walk, depth + 1);
  return object;
}

Json json_of(const PickleValue& value, PickleWalk& walk, size_t depth) {
  const bool is_text = value.is(PickleKind::kString) || value.is(PickleKind::kObject) ||
                       value.is(PickleKind::kGlobal);
  if (!walk.enter(depth, is_text ? value.text().size() + value.global_name().size() : 0))
    return "...";
  switch (value.kind()) {
    case PickleKind::kNone: return nullptr;
    case PickleKind::kBool: return value.integer() != 0;
    case PickleKind::kInt: return *value.integer();
    case PickleKind::kBigInt: return hexadecimal(value.text());
    case PickleKind::kFloat:
      // JSON has no word for these.
      if (!std::isfinite(value.real())) return fmt::format("{}", value.real());
      return value.real();
    case PickleKind::kString: return std::string(value.text());
    case PickleKind::kBytes: return fmt::format("<{} bytes>", value.text().size());
    case PickleKind::kTuple:
    case PickleKind::kList:
    case PickleKind::kSet: return array_of(value, walk, depth);
    case PickleKind::kDict: return dict_of(value, walk, depth);
    case PickleKind::kGlobal: return value.global_name();
    case PickleKind::kObject: return object_of(value, walk, depth);
    case PickleKind::kPersistent: return "<stored elsewhere in the file>";
  }
  return nullptr;
}

}  // namespace

std::string to_json(const PickleValue& value, PickleWalk& walk) {
  return dumped(json_of(value, walk, 0));
}

}  // namespace pliant::store
