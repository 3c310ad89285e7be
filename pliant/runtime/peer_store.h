// The versioned store of whole values that peers fetch from each other.
//
// save() keeps an immutable copy; request() is answered by the owner's background thread out of
// such a copy, so a reader never sees a torn value, and a value that is being sent outlives its
// place in the window. Driven by the thread that holds the loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/transport/transport.h"

namespace pliant {

class PeerStore final : public Sink {
 public:
  using Value = std::vector<std::byte>;
  using Answer = std::function<void(Result<Value>)>;
  static constexpr uint64_t kNewest = UINT64_MAX;

  // `epoch` stamps the messages. Borrows the transport.
  PeerStore(Transport& transport, Epoch epoch, int window);

  static bool owns(const Frame& frame);
  static bool owns(uint64_t cookie);

  Status save(std::string_view name, uint64_t version, std::span<const std::byte> bytes);
  // The value of this process itself.
  Result<Value> get(std::string_view name, uint64_t version) const;
  // Asks a peer; `answer` runs once, with the loop held. Returns a number for abandon().
  uint64_t request(PeerId peer, std::string_view name, uint64_t version, Answer answer);
  // The answer is not wanted any more.
  void abandon(uint64_t request);

  Result<std::byte*> place(PeerId from, const Frame& frame) override;
  void arrived(PeerId from, const Frame& frame, std::byte* payload) override;
  void sent(uint64_t cookie) override;
  void lost(PeerId peer, const Error& error) override;

 private:
  using Shared = std::shared_ptr<const Value>;
  struct Pending {
    PeerId peer;
    std::string name;
    Answer answer;
    Value value;
  };

  Result<Shared> find(const std::string& name, uint64_t version) const;
  void serve(PeerId from, const Frame& frame, std::span<const std::byte> body);
  void post(PeerId to, Frame frame, Shared payload);

  Transport& transport_;
  const Epoch epoch_;
  const size_t window_;
  std::unordered_map<std::string, std::map<uint64_t, Shared>> values_;
  std::unordered_map<uint64_t, Pending> pending_;  // by request number
  std::unordered_map<PeerId, Error> lost_;
  std::unordered_map<uint64_t, Shared> outgoing_;  // by cookie
  std::unordered_map<PeerId, Value> incoming_;     // a request's body, one a peer at a time
  Value waste_;
  uint64_t next_ = 1;
};

}  // namespace pliant
