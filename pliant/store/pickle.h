// Reads Python pickles (protocols 2 to 5) without executing anything: what a pickle would import
// and call becomes a value that says so. Owned by whoever decoded it; immutable, any thread.
//
// The values are nodes of one table and refer to each other by their place in it, because pickles
// share values and may even contain themselves; a walk over them needs a bound of its own on depth
// and on the number of values it visits (see PickleWalk). Texts are views of the bytes that were
// decoded, which therefore outlive the pickle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"

namespace pliant::store {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,     // fits 64 bits
  kBigInt,  // text: little-endian two's complement
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,      // a name that unpickling would import
  kObject,      // a call that unpickling would make, and what it would do to the result
  kPersistent,  // a reference to something outside the pickle: torch's storages
};

struct PickleLimits {
  uint64_t size_bytes_max = uint64_t{1} << 30;
  uint32_t values_max = uint32_t{1} << 25;
  uint32_t depth_max = 1000;  // of lists, tuples and dicts that are open at once
};

class Pickle;

// One value of a pickle; copies are cheap and equal. The pickle outlives it. Asking for what the
// kind does not have gives an empty answer, so that readers of damaged files need no checks of
// their own before each step.
class PickleValue final {
 public:
  PickleKind kind() const;
  uint32_t id() const { return id_; }  // equal for one value that is referred to twice
  bool is(PickleKind kind) const { return this->kind() == kind; }
  bool is_none() const { return is(PickleKind::kNone); }

  std::optional<int64_t> integer() const;          // of kInt and kBool
  double real() const;                             // of kFloat
  std::optional<std::string_view> string() const;  // of kString
  std::string_view text() const;                   // of kString, kBytes and kBigInt

  // "collections.OrderedDict": of kGlobal, and of kObject for what it would call.
  std::string global_name() const;
  bool is_global(std::string_view module, std::string_view name) const;  // kGlobal alone

  // Of tuples, lists and sets, and of objects that unpickling would append to.
  size_t size() const;
  PickleValue item(size_t index) const;
  // Of dicts, and of objects that unpickling would set items of.
  size_t entries() const;
  std::pair<PickleValue, PickleValue> entry(size_t index) const;
  // The entry with this key; None without one.
  PickleValue find(std::string_view key) const;

  PickleValue callable() const;   // of kObject: a kGlobal, unless the file is strange
  PickleValue arguments() const;  // of kObject: a tuple
  PickleValue state() const;      // of kObject: None if it has none
  // What the object's state names so: state is a dict, or a pair of dicts.
  PickleValue attribute(std::string_view name) const;
  PickleValue reference() const;  // of kPersistent: what identifies it

 private:
  friend class Pickle;
  PickleValue(const Pickle& pickle, uint32_t id) : pickle_(&pickle), id_(id) {}

  const Pickle* pickle_;
  uint32_t id_;
};

class Pickle final {
 public:
  static Result<Pickle> decode(Bytes bytes, const PickleLimits& limits = {});

  PickleValue root() const { return {*this, root_}; }
  size_t values() const { return nodes_.size(); }

 private:
  friend class PickleValue;
  friend class PickleMachine;

  // What few kinds of values have.
  struct Parts {
    std::string_view name;  // of a global
    std::vector<uint32_t> items;
    std::vector<uint32_t> entries;  // key, value, key, value...
    uint32_t callable = 0;
    uint32_t arguments = 0;
    uint32_t state = 0;
  };
  struct Node {
    PickleKind kind = PickleKind::kNone;
    int64_t integer = 0;
    double real = 0;
    std::string_view text = {};  // of a global: its module
    std::unique_ptr<Parts> parts = {};
  };
  static const Parts& parts_of(const Node& node);

  std::vector<Node> nodes_;  // node 0 is None
  uint32_t root_ = 0;
};

// The bound of a walk over a pickle's values: a value that is shared is met as often as it is
// referred to, so a small file can describe a tree of any size.
class PickleWalk final {
 public:
  explicit PickleWalk(size_t visits_max, size_t text_bytes_max = size_t{1} << 20,
                      size_t depth_max = 200)
      : visits_left_(visits_max), text_left_(text_bytes_max), depth_max_(depth_max) {}
  // False when the walk has gone far enough; call it once for each value that is visited, with the
  // bytes that are kept of it.
  bool enter(size_t depth, size_t text_bytes = 0) {
    if (visits_left_ == 0 || text_bytes > text_left_ || depth > depth_max_) return false;
    --visits_left_;
    text_left_ -= text_bytes;
    return true;
  }

 private:
  size_t visits_left_;
  size_t text_left_;
  size_t depth_max_;
};

// The value as JSON, for people and for side files: tuples and sets are arrays, bytes are given by
// their length, objects as {"object": name, ...}. Ends with "..." where the walk's bound is
// reached.
std::string to_json(const PickleValue& value, PickleWalk& walk);

}  // namespace pliant::store
