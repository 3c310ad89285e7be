// The versioned store of whole values that peers fetch from each other.
//
// save() keeps an immutable copy; request() is answered by the owner's background thread out of
// such a copy, so a reader never sees a torn value, and a value that is being sent outlives its
// place in the window. Values belong to the process, not to a view: they survive its changes, and a
// request ends when its peer goes. Driven by the thread that holds the loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/runtime/stored_value.h"
#include "pliant/transport/transport.h"

namespace pliant {

class PeerStore final : public Sink {
 public:
  using Value = std::vector<std::byte>;
  using Answer = std::function<void(Result<StoredValue>)>;
  static constexpr uint64_t kNewest = UINT64_MAX;

  // `epoch` stamps the messages. Borrows the transport.
  PeerStore(Transport& transport, Epoch epoch);

  static bool owns(const Frame& frame);
  static bool owns(uint64_t cookie);

  // Keeps a value and the newest `window` versions of its name, at least one.
  Status save(std::string_view name, uint64_t version, Value value, size_t window);
  // Memory for the next save() of this name, of the version that will then be dropped, if it is of
  // that size and on its way to nobody.
  Value spare(std::string_view name, size_t bytes, size_t window);
  // The value of this process itself.
  Result<StoredValue> get(std::string_view name, uint64_t version) const;
  // Asks a peer; `answer` runs once, with the loop held. Returns a number for abandon().
  uint64_t request(PeerId peer, std::string_view name, uint64_t version, Answer answer);
  // Ends a request with an error, unless it was answered before.
  void abandon(uint64_t request, const Error& error);
  // The same for all requests to this peer, now and later, although it may still be connected.
  void let_go(PeerId peer, const Error& error);
  void cancel_all(const Error& error);

  Result<std::byte*> place(PeerId from, const Frame& frame) override;
  void arrived(PeerId from, const Frame& frame, std::byte* payload) override;
  void sent(uint64_t cookie) override;
  void lost(PeerId peer, const Error& error) override;

 private:
  using Shared = std::shared_ptr<Value>;  // not changed any more once it is here
  using Versions = std::map<uint64_t, Shared>;
  struct Pending {
    PeerId peer;
    Answer answer;
    Value value;
  };
  struct Outgoing {
    PeerId to;
    Shared payload;
  };

  Result<Versions::const_iterator> find(const std::string& name, uint64_t version) const;
  template <typename Wanted>
  void end(Wanted wanted, const Error& error);
  void serve(PeerId from, const Frame& frame, std::span<const std::byte> body);
  void post(PeerId to, Frame frame, Shared payload);

  Transport& transport_;
  const Epoch epoch_;
  std::unordered_map<std::string, Versions> values_;
  std::unordered_map<uint64_t, Pending> pending_;  // by request number
  std::unordered_map<PeerId, Error> lost_;
  std::unordered_map<uint64_t, Outgoing> outgoing_;  // by cookie
  std::unordered_map<PeerId, Value> incoming_;       // a request's body, one a peer at a time
  Value waste_;
  uint64_t next_ = 1;
};

}  // namespace pliant
