#include "pliant/store/pickle.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <unordered_map>

namespace pliant::store {
namespace {

// What the letters and numbers of the format mean.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloatText = 'F',
  kBinFloat = 'G',
  kIntText = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLongText = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersistent = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kAppends = 'e',
  kGetText = 'g',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kPutText = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kProtocol = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjectEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

constexpr int kProtocolMax = 5;

}  // namespace

// The machine that a pickle is a program for, without the instructions that reach outside.
class PickleMachine final {
 public:
  PickleMachine(Bytes bytes, const PickleLimits& limits, Pickle& pickle)
      : all_(bytes), rest_(bytes), limits_(limits), pickle_(pickle) {
    none_ = add({});
    true_ = add({.kind = PickleKind::kBool, .integer = 1});
    false_ = add({.kind = PickleKind::kBool});
    empty_ = add({.kind = PickleKind::kTuple});
  }

  Status run() {
    while (true) {
      at_ = all_.size() - rest_.size();
      const auto opcode = take<uint8_t>();
      if (!fault_.empty()) return fault("the pickle has no end");
      if (opcode == kStop) return finish();
      step(opcode);
      if (!fault_.empty()) return fault(fault_);
      if (pickle_.nodes_.size() > limits_.values_max)
        return fault(fmt::format("the pickle has more than {} values", limits_.values_max));
    }
  }

 private:
  using Node = Pickle::Node;

  Status fault(const std::string& why) const {
    return invalid(
        fmt::format("{} (at offset {} of the pickle of {} bytes)", why, at_, all_.size()));
  }
  void fail(std::string why) {
    if (fault_.empty()) fault_ = std::move(why);
  }

  // Reading.
  std::string_view take_text(uint64_t size_bytes) {
    if (size_bytes > rest_.size()) {
      fail(fmt::format("{} bytes are announced and {} are left", size_bytes, rest_.size()));
      rest_ = {};
      return {};
    }
    const std::string_view text(reinterpret_cast<const char*>(rest_.data()), size_bytes);
    rest_ = rest_.subspan(size_bytes);
    return text;
  }
  template <typename T>
  T take() {
    T value{};
    const std::string_view text = take_text(sizeof(T));
    if (!text.empty()) std::memcpy(&value, text.data(), sizeof(T));
    return value;
  }
  std::string_view take_line() {
    const std::string_view rest(reinterpret_cast<const char*>(rest_.data()), rest_.size());
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) {
      fail("a line has no end");
      return {};
    }
    rest_ = rest_.subspan(end + 1);
    return rest.substr(0, end);
  }
  template <typename T>
  T take_number_line() {
    std::string_view line = take_line();
    if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
    T value{};
    const auto read = std::from_chars(line.data(), line.data() + line.size(), value);
    if (read.ec != std::errc{} || read.ptr != line.data() + line.size())
      fail("a number is written wrongly, or too large");
    return value;
  }

  // The table, the stack and the memo.
  uint32_t add(Node node) {
    pickle_.nodes_.push_back(std::move(node));
    return static_cast<uint32_t>(pickle_.nodes_.size() - 1);
  }
  void push(uint32_t id) { stack_.push_back(id); }
  void push_text(PickleKind kind, std::string_view text) {
    push(add({.kind = kind, .text = text}));
  }
  void push_integer(int64_t value) { push(add({.kind = PickleKind::kInt, .integer = value})); }
  uint32_t pop() {
    // What lies below a mark belongs to it and is taken with it.
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      fail("something is taken from an empty stack");
      return none_;
    }
    const uint32_t id = stack_.back();
    stack_.pop_back();
    return id;
  }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) {
      fail("a mark is missing");
      return {};
    }
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<uint32_t> taken(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return taken;
  }
  uint32_t top() {
    const uint32_t id = pop();
    if (fault_.empty()) push(id);
    return id;
  }
  Pickle::Parts& parts(uint32_t id) {
    auto& owned = pickle_.nodes_[id].parts;
    if (owned == nullptr) owned = std::make_unique<Pickle::Parts>();
    return *owned;
  }
  uint32_t add_with_items(PickleKind kind, std::vector<uint32_t> items) {
    const uint32_t id = add({.kind = kind});
    items.shrink_to_fit();
    if (!items.empty()) parts(id).items = std::move(items);
    return id;
  }
  void put(uint64_t index) {
    const uint32_t id = top();
    if (fault_.empty()) memo_.insert_or_assign(index, id);
  }
  void get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) return fail(fmt::format("nothing is remembered as {}", index));
    push(found->second);
  }

  Status finish() {
    const uint32_t root = pop();
    if (!fault_.empty()) return fault(fault_);
    if (!stack_.empty() || !marks_.empty()) return fault("the pickle ends in the middle");
    pickle_.root_ = root;
    return {};
  }

  // One instruction: each of these knows some, and says whether it knew this one.
  void step(uint8_t opcode) {
    if (scalar(opcode) || text(opcode) || container(opcode) || object(opcode) || stack(opcode))
      return;
    switch (opcode) {
      case 0x82:
      case 0x83:
      case 0x84: return fail("the pickle uses extension codes of the program that wrote it");
      case 0x97:
      case 0x98: return fail("the pickle keeps some of its data elsewhere (out of band)");
      default: return fail(fmt::format("opcode 0x{:02x} is unknown here", opcode));
    }
  }

  bool scalar(uint8_t opcode) {
    switch (opcode) {
      case kNone: push(none_); return true;
      case kNewTrue: push(true_); return true;
      case kNewFalse: push(false_); return true;
      case kBinInt: push_integer(take<int32_t>()); return true;
      case kBinInt1: push_integer(take<uint8_t>()); return true;
      case kBinInt2: push_integer(take<uint16_t>()); return true;
      case kIntText: integer_text(); return true;
      case kLongText: push_integer(take_number_line<int64_t>()); return true;
      case kLong1: long_integer(take_text(take<uint8_t>())); return true;
      case kLong4: long_integer(take_text(take<uint32_t>())); return true;
      case kBinFloat: big_endian_float(); return true;
      case kFloatText:
        push(add({.kind = PickleKind::kFloat, .real = take_number_line<double>()}));
        return true;
      default: return false;
    }
  }
  // "I00" and "I01" are how protocol 0 wrote false and true.
  void integer_text() {
    const Bytes before = rest_;
    const std::string_view line = take_line();
    if (line == "00" || line == "01") return push(line == "01" ? true_ : false_);
    rest_ = before;
    push_integer(take_number_line<int64_t>());
  }
  void long_integer(std::string_view text) {
    if (text.size() > sizeof(int64_t)) return push_text(PickleKind::kBigInt, text);
    const bool negative = !text.empty() && (static_cast<uint8_t>(text.back()) & 0x80) != 0;
    int64_t value = negative ? -1 : 0;
    if (!text.empty()) std::memcpy(&value, text.data(), text.size());
    push_integer(value);
  }
  void big_endian_float() {
    uint64_t bits = take<uint64_t>();
    bits = __builtin_bswap64(bits);
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    push(add({.kind = PickleKind::kFloat, .real = value}));
  }

  bool text(uint8_t opcode) {
    switch (opcode) {
      case kBinUnicode: push_text(PickleKind::kString, take_text(take<uint32_t>())); return true;
      case kShortBinUnicode:
        push_text(PickleKind::kString, take_text(take<uint8_t>()));
        return true;
      case kBinUnicode8: push_text(PickleKind::kString, take_text(take<uint64_t>())); return true;
      // Strings of Python 2, which did not say what they were; torch's old files have names in
      // them.
      case kBinString: push_text(PickleKind::kString, take_text(take<uint32_t>())); return true;
      case kShortBinString: push_text(PickleKind::kString, take_text(take<uint8_t>())); return true;
      case kBinBytes: push_text(PickleKind::kBytes, take_text(take<uint32_t>())); return true;
      case kShortBinBytes: push_text(PickleKind::kBytes, take_text(take<uint8_t>())); return true;
      case kBinBytes8:
      case kByteArray8: push_text(PickleKind::kBytes, take_text(take<uint64_t>())); return true;
      default: return false;
    }
  }

  bool container(uint8_t opcode) {
    switch (opcode) {
      case kEmptyTuple: push(empty_); return true;
      case kEmptyList: push(add({.kind = PickleKind::kList})); return true;
      case kEmptyDict: push(add({.kind = PickleKind::kDict})); return true;
      case kEmptySet: push(add({.kind = PickleKind::kSet})); return true;
      case kTuple: push(add_with_items(PickleKind::kTuple, pop_to_mark())); return true;
      case kTuple1: tuple_of(1); return true;
      case kTuple2: tuple_of(2); return true;
      case kTuple3: tuple_of(3); return true;
      case kList: push(add_with_items(PickleKind::kList, pop_to_mark())); return true;
      case kFrozenSet: push(add_with_items(PickleKind::kSet, pop_to_mark())); return true;
      case kDict: {
        const std::vector<uint32_t> entries = pop_to_mark();
        const uint32_t id = add({.kind = PickleKind::kDict});
        set_items(id, entries);
        push(id);
        return true;
      }
      case kAppend: {
        const uint32_t item = pop();
        append(top(), {item});
        return true;
      }
      case kAppends:
      case kAddItems: {
        const std::vector<uint32_t> items = pop_to_mark();
        append(top(), items);
        return true;
      }
      case kSetItem: {
        const uint32_t value = pop();
        const uint32_t key = pop();
        set_items(top(), {key, value});
        return true;
      }
      case kSetItems: {
        const std::vector<uint32_t> entries = pop_to_mark();
        set_items(top(), entries);
        return true;
      }
      default: return false;
    }
  }
  void tuple_of(size_t count) {
    std::vector<uint32_t> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    if (fault_.empty()) push(add_with_items(PickleKind::kTuple, std::move(items)));
  }
  void append(uint32_t id, const std::vector<uint32_t>& items) {
    if (!fault_.empty()) return;
    const PickleKind kind = pickle_.nodes_[id].kind;
    if (kind != PickleKind::kList && kind != PickleKind::kSet && kind != PickleKind::kObject)
      return fail("something is appended to a value that is no list");
    std::vector<uint32_t>& all = parts(id).items;
    all.insert(all.end(), items.begin(), items.end());
  }
  void set_items(uint32_t id, const std::vector<uint32_t>& entries) {
    if (!fault_.empty()) return;
    const PickleKind kind = pickle_.nodes_[id].kind;
    if (kind != PickleKind::kDict && kind != PickleKind::kObject)
      return fail("something is entered into a value that is no dict");
    if (entries.size() % 2 != 0) return fail("a dict has a key without a value");
    std::vector<uint32_t>& all = parts(id).entries;
    all.insert(all.end(), entries.begin(), entries.end());
  }

  bool object(uint8_t opcode) {
    switch (opcode) {
      case kGlobal: {
        const std::string_view module = take_line();
        push_global(module, take_line());
        return true;
      }
      case kStackGlobal: {
        const uint32_t name = pop();
        const uint32_t module = pop();
        if (!fault_.empty()) return true;
        if (pickle_.nodes_[name].kind != PickleKind::kString ||
            pickle_.nodes_[module].kind != PickleKind::kString)
          fail("a name to import is no string");
        else
          push_global(pickle_.nodes_[module].text, pickle_.nodes_[name].text);
        return true;
      }
      case kReduce:
      case kNewObject: {
        const uint32_t arguments = pop();
        push_object(pop(), arguments);
        return true;
      }
      case kNewObjectEx: {
        const uint32_t named = pop();
        const uint32_t arguments = pop();
        push_object(pop(), arguments);
        if (fault_.empty()) parts(stack_.back()).state = named;
        return true;
      }
      case kBuild: {
        const uint32_t state = pop();
        const uint32_t id = top();
        if (!fault_.empty()) return true;
        if (pickle_.nodes_[id].kind != PickleKind::kObject)
          fail("a state is given to a value that has none");
        else
          parts(id).state = state;
        return true;
      }
      case kBinPersistent: {
        const uint32_t reference = pop();
        if (!fault_.empty()) return true;
        push(add({.kind = PickleKind::kPersistent}));
        parts(stack_.back()).items = {reference};
        return true;
      }
      default: return false;
    }
  }
  void push_global(std::string_view module, std::string_view name) {
    if (!fault_.empty()) return;
    push(add({.kind = PickleKind::kGlobal, .text = module}));
    parts(stack_.back()).name = name;
  }
  void push_object(uint32_t callable, uint32_t arguments) {
    if (!fault_.empty()) return;
    push(add({.kind = PickleKind::kObject}));
    parts(stack_.back()).callable = callable;
    parts(stack_.back()).arguments = arguments;
  }

  bool stack(uint8_t opcode) {
    switch (opcode) {
      case kProtocol:
        if (const auto version = take<uint8_t>(); version > kProtocolMax)
          fail(fmt::format("the pickle is of protocol {}; {} is the last one known here", version,
                           kProtocolMax));
        return true;
      // A frame tells how much to read ahead, which is nothing to us.
      case kFrame: take<uint64_t>(); return true;
      case kMark:
        if (marks_.size() >= limits_.depth_max)
          fail(fmt::format("values are nested deeper than {}", limits_.depth_max));
        marks_.push_back(stack_.size());
        return true;
      case kPop:
        // As Python does it: a mark on top is what is removed.
        if (!marks_.empty() && marks_.back() == stack_.size())
          marks_.pop_back();
        else
          pop();
        return true;
      case kPopMark: pop_to_mark(); return true;
      case kDup: {
        const uint32_t id = top();
        if (fault_.empty()) push(id);
        return true;
      }
      case kBinGet: get(take<uint8_t>()); return true;
      case kLongBinGet: get(take<uint32_t>()); return true;
      case kGetText: get(take_number_line<uint64_t>()); return true;
      case kBinPut: put(take<uint8_t>()); return true;
      case kLongBinPut: put(take<uint32_t>()); return true;
      case kPutText: put(take_number_line<uint64_t>()); return true;
      case kMemoize: put(memo_.size()); return true;
      default: return false;
    }
  }

  Bytes all_;
  Bytes rest_;
  PickleLimits limits_;
  Pickle& pickle_;
  size_t at_ = 0;
  std::string fault_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // how many values lay below each
  std::unordered_map<uint64_t, uint32_t> memo_;
  uint32_t none_ = 0;
  uint32_t true_ = 0;
  uint32_t false_ = 0;
  uint32_t empty_ = 0;
};

Result<Pickle> Pickle::decode(Bytes bytes, const PickleLimits& limits) {
  if (bytes.size() > limits.size_bytes_max)
    return invalid(fmt::format("a pickle of {} is longer than the {} that are read at most",
                               human_bytes(bytes.size()), human_bytes(limits.size_bytes_max)));
  Pickle pickle;
  PickleMachine machine(bytes, limits, pickle);
  PLIANT_TRY(machine.run());
  return pickle;
}

}  // namespace pliant::store
