#include "pliant/runtime/peer_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "pliant/base/bytes.h"

namespace pliant {
namespace {
// Frame types; those below belong to the collectives.
constexpr uint8_t kRequest = 16;
constexpr uint8_t kValue = 17;
constexpr uint8_t kMissing = 18;  // the payload says why
constexpr uint64_t kCookie = uint64_t{1} << 63;
constexpr size_t kNameBytesMax = 256;
constexpr size_t kRequestBytesMax = 512;
}  // namespace

PeerStore::PeerStore(Transport& transport, Epoch epoch) : transport_(transport), epoch_(epoch) {}

bool PeerStore::owns(const Frame& frame) { return frame.type >= kRequest; }
bool PeerStore::owns(uint64_t cookie) { return (cookie & kCookie) != 0; }

Status PeerStore::save(std::string_view name, uint64_t version, Value value, size_t window) {
  if (name.empty() || name.size() > kNameBytesMax)
    return invalid(fmt::format("a stored name has 1 to {} characters", kNameBytesMax));
  if (version == kNewest) return invalid("the highest version number is reserved");
  if (value.size() > kPayloadBytesMax)
    return invalid(fmt::format("the value '{}' is too large: a message has at most {} bytes", name,
                               kPayloadBytesMax));
  Versions& versions = values_[std::string(name)];
  versions[version] = std::make_shared<Value>(std::move(value));
  while (versions.size() > std::max<size_t>(1, window)) versions.erase(versions.begin());
  return {};
}

PeerStore::Value PeerStore::spare(std::string_view name, size_t bytes, size_t window) {
  const auto at = values_.find(std::string(name));
  // Peers may ask for the newest at any time.
  if (at == values_.end() || at->second.size() < std::max<size_t>(2, window)) return {};
  const auto oldest = at->second.begin();
  if (oldest->second.use_count() > 1 || oldest->second->size() != bytes) return {};
  Value memory = std::move(*oldest->second);
  at->second.erase(oldest);
  return memory;
}

Result<PeerStore::Versions::const_iterator> PeerStore::find(const std::string& name,
                                                            uint64_t version) const {
  const auto at = values_.find(name);
  if (at == values_.end()) return invalid(fmt::format("holds no value '{}'", name));
  const Versions& versions = at->second;
  const auto wanted = version == kNewest ? std::prev(versions.end()) : versions.find(version);
  if (wanted == versions.end())
    return invalid(fmt::format("holds versions {} to {} of '{}', not {}", versions.begin()->first,
                               versions.rbegin()->first, name, version));
  return wanted;
}

Result<StoredValue> PeerStore::get(std::string_view name, uint64_t version) const {
  const auto found = find(std::string(name), version);
  if (!found) return invalid("this rank " + found.error().message);
  return StoredValue{*(*found)->second, (*found)->first};
}

uint64_t PeerStore::request(PeerId peer, std::string_view name, uint64_t version, Answer answer) {
  const uint64_t number = next_++;
  if (const auto at = lost_.find(peer); at != lost_.end()) {
    answer(at->second);
    return number;
  }
  Writer writer;
  writer.put(version);
  writer.put_string(name.substr(0, kNameBytesMax));
  pending_.emplace(number, Pending{peer, std::move(answer), {}});
  Frame frame;
  frame.type = kRequest;
  frame.key = number;
  post(peer, frame, std::make_shared<Value>(writer.bytes()));
  return number;
}

// An answer may make calls of its own.
template <typename Wanted>
void PeerStore::end(Wanted wanted, const Error& error) {
  std::vector<Answer> answers;
  for (auto at = pending_.begin(); at != pending_.end();) {
    if (!wanted(at->first, at->second.peer)) {
      ++at;
      continue;
    }
    transport_.forget(at->second.value);
    answers.push_back(std::move(at->second.answer));
    at = pending_.erase(at);
  }
  for (const Answer& answer : answers) answer(error);
}

void PeerStore::abandon(uint64_t request, const Error& error) {
  end([&](uint64_t number, PeerId) { return number == request; }, error);
}

void PeerStore::let_go(PeerId peer, const Error& error) {
  lost_.emplace(peer, error);
  end([&](uint64_t, PeerId from) { return from == peer; }, error);
}

void PeerStore::cancel_all(const Error& error) {
  end([](uint64_t, PeerId) { return true; }, error);
}

void PeerStore::post(PeerId to, Frame frame, Shared payload) {
  frame.epoch = number(epoch_);
  frame.payload_bytes = payload->size();
  const uint64_t cookie = kCookie | next_++;
  const std::span<const std::byte> bytes = *payload;
  outgoing_.emplace(cookie, Outgoing{to, std::move(payload)});
  transport_.send(to, frame, bytes, cookie);
}

Result<std::byte*> PeerStore::place(PeerId from, const Frame& frame) {
  if (frame.type == kRequest) {
    if (frame.payload_bytes > kRequestBytesMax) return invalid("a store request is too long");
    Value& body = incoming_[from];
    body.resize(std::max<size_t>(1, frame.payload_bytes));
    return body.data();
  }
  const auto at = pending_.find(frame.key);
  const bool known = at != pending_.end() && at->second.peer == from;
  Value& value = known ? at->second.value : waste_;
  value.resize(std::max<size_t>(1, frame.payload_bytes));
  return value.data();
}

void PeerStore::arrived(PeerId from, const Frame& frame, std::byte* payload) {
  if (frame.type == kRequest) return serve(from, frame, {payload, frame.payload_bytes});
  const auto at = pending_.find(frame.key);
  if (at == pending_.end() || at->second.value.data() != payload) return;
  Pending pending = std::move(at->second);
  pending_.erase(at);
  pending.value.resize(frame.payload_bytes);
  if (frame.type == kValue)
    return pending.answer(StoredValue{std::move(pending.value), frame.count});
  const std::string why(reinterpret_cast<const char*>(pending.value.data()), pending.value.size());
  pending.answer(Error{Code::kInvalid, why, from, epoch_});
}

void PeerStore::serve(PeerId from, const Frame& frame, std::span<const std::byte> body) {
  Reader reader(body);
  const auto version = reader.take<uint64_t>();
  const std::string name = reader.take_string(kNameBytesMax);
  const auto found =
      reader.finished()
          ? find(name, version)
          : Result<Versions::const_iterator>(invalid("received a request it cannot read"));
  Frame reply;
  reply.key = frame.key;
  reply.type = found ? kValue : kMissing;
  if (found) {
    reply.count = (*found)->first;
    return post(from, reply, (*found)->second);
  }
  const auto why = std::as_bytes(std::span(found.error().message));
  post(from, reply, std::make_shared<Value>(why.begin(), why.end()));
}

void PeerStore::sent(uint64_t cookie) { outgoing_.erase(cookie); }

void PeerStore::lost(PeerId peer, const Error& error) {
  // Nobody says of these that they were sent.
  std::erase_if(outgoing_, [&](const auto& entry) { return entry.second.to == peer; });
  let_go(peer, error);
}

}  // namespace pliant
