#include "pliant/runtime/control.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace pliant {
namespace {

constexpr size_t kTextBytesMax = 128 * 1024;  // Linux's own limit for one argument or variable
constexpr uint32_t kListMax = 65536;
constexpr size_t kLengthBytes = sizeof(uint32_t);

// The fields of each message, in their order on the wire: one list serves both directions. `each`
// is a PutFields or a TakeFields.
template <typename Each>
void fields(Each& each, Greeting& m) {
  each(m.version, m.token);
}
template <typename Each>
void fields(Each& each, Join& m) {
  each(m.member, m.epoch);
}
template <typename Each>
void fields(Each&, Leave&) {}
template <typename Each>
void fields(Each& each, ViewDecided& m) {
  each(m.view, m.gone);
}
template <typename Each>
void fields(Each& each, Refused& m) {
  each(m.code, m.reason);
}
template <typename Each>
void fields(Each& each, PeerLost& m) {
  each(m.peer, m.reason);
}
template <typename Each>
void fields(Each& each, AgentReady& m) {
  each(m.host, m.address, m.free_port, m.exit_code, m.problem, m.running, m.ended, m.notice,
       m.store, m.store_http);
}
template <typename Each>
void fields(Each& each, StartWorkers& m) {
  each(m.master_address, m.master_port, m.stores);
}
template <typename Each>
void fields(Each& each, SignalWorkers& m) {
  each(m.signal);
}
template <typename Each>
void fields(Each& each, WorkerExited& m) {
  each(m.peer, m.pid, m.exit_code, m.signal, m.problem);
}
template <typename Each>
void fields(Each& each, AgentSpec& m) {
  each(m.coordinator, m.token, m.host_name, m.address, m.host, m.group_rank, m.first_rank,
       m.worker_count, m.world_size, m.command, m.directory, m.environment, m.output.prefix,
       m.output.quiet, m.output.log_directory, m.elastic, m.revocation.provider,
       m.revocation.metadata_url, m.revocation.poll_ns, m.store.bytes_max, m.store.versions_max,
       m.store.copies, m.store.directory);
}
template <typename Each>
void fields(Each& each, Meet& m) {
  each(m.members);
}
template <typename Each>
void fields(Each& each, Met& m) {
  each(m.peers);
}
template <typename Each>
void fields(Each& each, Paused& m) {
  each(m.reason);
}
template <typename Each>
void fields(Each&, Alive&) {}
template <typename Each>
void fields(Each& each, Progress& m) {
  each(m.step, m.samples);
}
template <typename Each>
void fields(Each& each, Proposal& m) {
  each(m.size);
}
template <typename Each>
void fields(Each& each, Recovered& m) {
  each(m.epoch, m.step, m.agree_ns, m.redo_ns, m.transfer_ns, m.transfer_bytes, m.incomplete);
}
template <typename Each>
void fields(Each& each, StartWorker& m) {
  each(m.slot, m.incarnation, m.rank);
}
template <typename Each>
void fields(Each& each, SignalWorker& m) {
  each(m.peer, m.signal);
}
template <typename Each>
void fields(Each& each, WorkerDied& m) {
  each(m.peer);
}
template <typename Each>
void fields(Each& each, Notice& m) {
  each(m.host, m.slot, m.reason);
}
template <typename Each>
void fields(Each& each, LauncherSignal& m) {
  each(m.signal);
}
template <typename Each>
void fields(Each& each, AgentEnded& m) {
  each(m.host, m.reason);
}
template <typename Each>
void fields(Each& each, JobFinished& m) {
  each(m.exit_code, m.message);
}
template <typename Each>
void fields(Each& each, ViewChanged& m) {
  each(m.delta.before, m.delta.epoch, m.delta.gone, m.delta.joined, m.delta.fingerprint);
}

// Parts of messages.
template <typename Each>
void fields(Each& each, Member& m) {
  each(m.id, m.pid, m.host, m.address, m.port, m.local_name);
}
template <typename Each>
void fields(Each& each, Departure& m) {
  each(m.peer, m.ended, m.planned, m.reason);
}

// The least that one element takes on the wire.
constexpr size_t bytes_min(const std::string*) { return kLengthBytes; }
constexpr size_t bytes_min(const PeerId*) { return 8; }
constexpr size_t bytes_min(const Member*) { return 8 + 4 + 2 + 3 * kLengthBytes; }
constexpr size_t bytes_min(const Departure*) { return 8 + 1 + 1 + kLengthBytes; }
constexpr size_t bytes_min(const WorkerExited*) { return 8 + 3 * 4 + kLengthBytes; }

class PutFields {
 public:
  template <typename... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  Writer& writer() { return writer_; }

 private:
  template <typename T>
  requires std::is_integral_v<T>
  void put(const T& value) { writer_.put(value); }
  void put(const bool& value) { writer_.put(static_cast<uint8_t>(value ? 1 : 0)); }
  void put(const Code& code) { writer_.put(static_cast<uint8_t>(code)); }
  void put(const Epoch& epoch) { writer_.put(number(epoch)); }
  void put(const PeerId& peer) { writer_.put(peer.packed()); }
  void put(const std::string& text) { writer_.put_string(text); }
  void put(const View& view) {
    const std::vector<std::byte> bytes = encode(view);
    writer_.put_string({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  // fields() serves reading too and so takes a mutable part; this only reads it.
  void put(const Member& member) { fields(*this, const_cast<Member&>(member)); }
  void put(const Departure& departure) { fields(*this, const_cast<Departure&>(departure)); }
  void put(const WorkerExited& exited) { fields(*this, const_cast<WorkerExited&>(exited)); }
  template <typename T>
  void put(const std::vector<T>& list) {
    put(static_cast<uint32_t>(list.size()));
    for (const T& element : list) put(element);
  }
  void put(const std::map<std::string, std::string>& map) {
    put(static_cast<uint32_t>(map.size()));
    for (const auto& [name, value] : map) (*this)(name, value);
  }

  Writer writer_;
};

// After the first wrong field every later one is empty and finished() is false.
class TakeFields {
 public:
  explicit TakeFields(Bytes body) : reader_(body) {}
  template <typename... T>
  void operator()(T&... values) {
    (take(values), ...);
  }
  bool finished() const { return right_ && reader_.finished(); }

 private:
  template <typename T>
  requires std::is_integral_v<T>
  void take(T& value) { value = reader_.take<T>(); }
  void take(bool& value) {
    const auto byte = reader_.take<uint8_t>();
    demand(byte <= 1);
    value = byte == 1;
  }
  void take(Code& code) {
    const auto byte = reader_.take<uint8_t>();
    demand(byte >= static_cast<uint8_t>(Code::kPeerLost) &&
           byte <= static_cast<uint8_t>(Code::kInvalid));
    code = static_cast<Code>(byte);
  }
  void take(Epoch& epoch) { epoch = Epoch{reader_.take<uint32_t>()}; }
  void take(PeerId& peer) { peer = PeerId::unpack(reader_.take<uint64_t>()); }
  void take(std::string& text) { text = reader_.take_string(kTextBytesMax); }
  void take(View& view) {
    const std::string text = reader_.take_string(kControlBytesMax);
    auto decoded = decode_view(std::as_bytes(std::span(text)));
    demand(decoded.ok());
    if (decoded.ok()) view = std::move(*decoded);
  }
  void take(Member& member) { fields(*this, member); }
  void take(Departure& departure) { fields(*this, departure); }
  void take(WorkerExited& exited) { fields(*this, exited); }
  template <typename T>
  void take(std::vector<T>& list) {
    const uint32_t count = take_count(bytes_min(static_cast<const T*>(nullptr)));
    for (uint32_t i = 0; i < count && reader_.ok(); ++i) take(list.emplace_back());
  }
  void take(std::map<std::string, std::string>& map) {
    const uint32_t count = take_count(2 * kLengthBytes);
    for (uint32_t i = 0; i < count && reader_.ok(); ++i) {
      std::string name;
      std::string value;
      (*this)(name, value);
      demand(map.emplace(std::move(name), std::move(value)).second);
    }
  }
  // A count of more elements than there can be bytes for is a lie.
  uint32_t take_count(size_t element_bytes_min) {
    const auto count = reader_.take<uint32_t>();
    demand(count <= kListMax && count <= reader_.left() / element_bytes_min);
    return right_ ? count : 0;
  }
  void demand(bool condition) { right_ = right_ && condition; }

  Reader reader_;
  bool right_ = true;
};

// The type byte is the position in the variant, so new messages go to its end.
template <size_t kIndex = 0>
Result<Message> decode_as(uint8_t type, Bytes fields_bytes) {
  if constexpr (kIndex == std::variant_size_v<Message>) {
    return invalid(fmt::format("a control message of unknown type {}", type));
  } else {
    if (type != kIndex) return decode_as<kIndex + 1>(type, fields_bytes);
    std::variant_alternative_t<kIndex, Message> message;
    TakeFields take(fields_bytes);
    fields(take, message);
    if (!take.finished())
      return invalid(fmt::format("a control message of type {} is malformed", type));
    return Message(std::move(message));
  }
}

}  // namespace

std::vector<std::byte> encode_message(const Message& message) {
  PutFields put;
  // fields() serves reading too and so takes a mutable message; PutFields only reads it.
  std::visit([&](const auto& m) { fields(put, const_cast<std::decay_t<decltype(m)>&>(m)); },
             message);
  const std::vector<std::byte>& body = put.writer().bytes();
  Writer whole;
  whole.put(static_cast<uint32_t>(body.size() + 1));
  whole.put(static_cast<uint8_t>(message.index()));
  std::vector<std::byte> bytes = whole.bytes();
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

Result<Message> decode_message(Bytes body) {
  if (body.empty()) return invalid("an empty control message");
  return decode_as(static_cast<uint8_t>(body[0]), body.subspan(1));
}

void MessageReader::feed(Bytes bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(start_));
  start_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Message>> MessageReader::next() {
  const Bytes rest = Bytes(buffer_).subspan(start_);
  if (rest.size() < kLengthBytes) return std::optional<Message>();
  const auto size = Reader(rest).take<uint32_t>();
  if (size > size_bytes_max_)
    return invalid(fmt::format("a control message of {} where {} is the limit", human_bytes(size),
                               human_bytes(size_bytes_max_)));
  if (rest.size() < kLengthBytes + size) return std::optional<Message>();
  start_ += kLengthBytes + size;
  auto message = decode_message(rest.subspan(kLengthBytes, size));
  if (!message) return message.error();
  return std::optional<Message>(std::move(*message));
}

}  // namespace pliant
