// Ordered messages between peers; no ranks, no tensors.
//
// A Transport owns the links to a set of peers and is driven by the thread that holds its loop:
// every call is made, and every Sink callback is run, with the loop held. Messages from one peer on
// one stream arrive in the order in which they were sent; different streams are independent (a
// transport with one link a pair may treat all streams as one). Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pliant/base/ids.h"
#include "pliant/base/member.h"
#include "pliant/base/result.h"

namespace pliant {

// The head of each message: what it belongs to. 64 bytes, little-endian, the same on every
// transport. The transport reads only `magic`, `stream` and `payload_bytes`.
struct Frame {
  static constexpr uint16_t kMagic = 0x4c50;  // "PL"

  uint16_t magic = kMagic;
  uint8_t type = 0;        // the receiver's: data, arrival, abort, store request, ...
  uint8_t collective = 0;  // what the sender believes the operation to be; see collective/
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t phase = 0;   // of the schedule: tells a partial sum from a result of the same lane
  uint8_t stream = 0;  // messages of equal stream stay in order
  uint32_t epoch = 0;
  uint32_t sequence = 0;  // how often the operation's name was used before
  uint64_t key = 0;       // the operation: hash of group and name
  uint64_t count = 0;     // elements in the whole operation
  uint32_t lane = 0;      // the chunk
  int32_t root = 0;
  uint32_t shape = 0;  // digest of strategy and counts: equal on all ranks or the call is wrong
  uint32_t reserved[3] = {};
  uint64_t payload_bytes = 0;

  bool operator==(const Frame&) const = default;
};
static_assert(sizeof(Frame) == 64);

// A message larger than this is refused before anything is allocated.
inline constexpr uint64_t kPayloadBytesMax = uint64_t{1} << 32;

// Checks magic and size limits; the caller has read exactly sizeof(Frame) bytes.
Result<Frame> decode_frame(std::span<const std::byte, sizeof(Frame)> bytes);

// Where messages go. Implemented by the executor; called with the loop held.
class Sink {
 public:
  // A message's head has come: returns where its payload is to be put (payload_bytes of room that
  // stay valid until arrived() or lost()), or why it is refused. A refusal costs the sender its
  // link: the peer is lost with that error. Not called again for the same message.
  virtual Result<std::byte*> place(PeerId from, const Frame& frame) = 0;
  // The payload is complete, at the place that place() gave.
  virtual void arrived(PeerId from, const Frame& frame, std::byte* payload) = 0;
  // The payload given to send() with this cookie may be changed or freed. Exactly once a send(),
  // possibly before send() returns; not called for messages to a peer that was lost.
  virtual void sent(uint64_t cookie) = 0;
  // No message will come from this peer any more. Once a peer.
  virtual void lost(PeerId peer, const Error& error) = 0;

 protected:
  ~Sink() = default;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Makes a peer reachable; links are opened now or at the first send, as the transport sees fit.
  virtual void add_peer(const Member& member) = 0;

  // Queues one message. `payload` stays the caller's until Sink::sent(cookie). A send to an unknown
  // or lost peer is dropped: lost() has said or will say so.
  virtual void send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
                    uint64_t cookie) = 0;

  // From now on no byte of this memory is read or written: what was still to be sent is copied
  // first, what is being received goes to waste. For operations that fail half-way.
  virtual void forget(std::span<const std::byte> memory) = 0;

  // Moves what can be moved without waiting; true if anything moved. Transports whose descriptors
  // are watched by the loop do their work in the loop's turn and return false.
  virtual bool poll() = 0;

  // True if the peer would notice our end: it has been sent a message, or the transport has
  // connected the two before that; and it is not lost.
  virtual bool linked(PeerId peer) const = 0;

  virtual const char* name() const = 0;
};

}  // namespace pliant
