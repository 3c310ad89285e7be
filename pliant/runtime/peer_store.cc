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

PeerStore::PeerStore(Transport& transport, Epoch epoch, int window)
    : transport_(transport), epoch_(epoch), window_(static_cast<size_t>(window)) {}

bool PeerStore::owns(const Frame& frame) { return frame.type >= kRequest; }
bool PeerStore::owns(uint64_t cookie) { return (cookie & kCookie) != 0; }

Status PeerStore::save(std::string_view name, uint64_t version, std::span<const std::byte> bytes) {
  if (name.empty() || name.size() > kNameBytesMax)
    return invalid(fmt::format("a stored name has 1 to {} characters", kNameBytesMax));
  if (version == kNewest) return invalid("the highest version number is reserved");
  auto& versions = values_[std::string(name)];
  versions[version] = std::make_shared<const Value>(bytes.begin(), bytes.end());
  while (versions.size() > window_) versions.erase(versions.begin());
  return {};
}

Result<PeerStore::Shared> PeerStore::find(const std::string& name, uint64_t version) const {
  const auto at = values_.find(name);
  if (at == values_.end()) return invalid(fmt::format("holds no value '{}'", name));
  const auto& versions = at->second;
  const auto wanted = version == kNewest ? std::prev(versions.end()) : versions.find(version);
  if (wanted == versions.end())
    return invalid(fmt::format("holds versions {} to {} of '{}', not {}", versions.begin()->first,
                               versions.rbegin()->first, name, version));
  return wanted->second;
}

Result<PeerStore::Value> PeerStore::get(std::string_view name, uint64_t version) const {
  auto found = find(std::string(name), version);
  if (!found) return invalid("this rank " + found.error().message);
  return **found;
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
  pending_.emplace(number, Pending{peer, std::string(name), std::move(answer), {}});
  Frame frame;
  frame.type = kRequest;
  frame.key = number;
  post(peer, frame, std::make_shared<const Value>(writer.bytes()));
  return number;
}

void PeerStore::abandon(uint64_t request) {
  const auto at = pending_.find(request);
  if (at == pending_.end()) return;
  transport_.forget(at->second.value);
  pending_.erase(at);
}

void PeerStore::post(PeerId to, Frame frame, Shared payload) {
  frame.epoch = number(epoch_);
  frame.payload_bytes = payload->size();
  const uint64_t cookie = kCookie | next_++;
  const std::span<const std::byte> bytes = *payload;
  outgoing_.emplace(cookie, std::move(payload));
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
  if (frame.type == kValue) return pending.answer(std::move(pending.value));
  const std::string why(reinterpret_cast<const char*>(pending.value.data()), pending.value.size());
  pending.answer(Error{Code::kInvalid, why, from, epoch_});
}

void PeerStore::serve(PeerId from, const Frame& frame, std::span<const std::byte> body) {
  Reader reader(body);
  const auto version = reader.take<uint64_t>();
  const std::string name = reader.take_string(kNameBytesMax);
  auto found = reader.finished() ? find(name, version)
                                 : Result<Shared>(invalid("received a request it cannot read"));
  Frame reply;
  reply.key = frame.key;
  reply.type = found ? kValue : kMissing;
  if (found) return post(from, reply, *found);
  const auto why = std::as_bytes(std::span(found.error().message));
  post(from, reply, std::make_shared<const Value>(why.begin(), why.end()));
}

void PeerStore::sent(uint64_t cookie) { outgoing_.erase(cookie); }

void PeerStore::lost(PeerId peer, const Error& error) {
  lost_.emplace(peer, error);
  std::vector<Answer> answers;
  for (auto at = pending_.begin(); at != pending_.end();) {
    if (at->second.peer != peer) {
      ++at;
      continue;
    }
    answers.push_back(std::move(at->second.answer));
    at = pending_.erase(at);
  }
  for (Answer& answer : answers) answer(error);
}

}  // namespace pliant
