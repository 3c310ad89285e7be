// One connection to a peer, on which this end sends and the other only receives.
//
// It dials at the first message, and again with growing pauses until a deadline; then it greets,
// and when the other end accepts it sends straight from the caller's memory. Owned by TcpTransport,
// driven by its loop.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "pliant/loop/loop.h"
#include "pliant/transport/handshake.h"
#include "pliant/transport/socket.h"
#include "pliant/transport/transport.h"

namespace pliant {

class Outbound final {
 public:
  struct Options {
    Address address;
    Hello hello;
    Duration connect_deadline;  // to the end of the handshake, however often it dials
    Duration silence_max;
  };
  // Called once, from the loop's turn and never inside send(); may destroy this object.
  using Failed = std::function<void(const Error&)>;

  Outbound(Loop& loop, Sink& sink, Options options, Failed failed);
  ~Outbound();
  Outbound(const Outbound&) = delete;
  Outbound& operator=(const Outbound&) = delete;

  // The queue has no bound of its own: each entry is a send() that its caller knows unfinished.
  void send(const Frame& frame, std::span<const std::byte> payload, uint64_t cookie);
  // Copies what is still to be sent from this memory.
  void forget(std::span<const std::byte> memory);

 private:
  enum class State {
    kIdle,        // nothing was sent yet, or a dial failed and the next waits for its time
    kConnecting,  // the kernel is at it
    kGreeting,    // our hello is out, the answer is not in
    kOpen,        // messages flow
    kBroken,      // over; the loop's next turn tells the owner
  };
  struct Message {
    Frame frame;
    std::span<const std::byte> payload;
    uint64_t cookie;
    std::unique_ptr<std::byte[]> copy = nullptr;  // behind `payload`, if that was forgotten
    size_t size_bytes() const { return sizeof(Frame) + payload.size(); }
  };

  void dial();
  void on_event(uint32_t events);
  void on_connected();
  void on_answer();
  void on_closed();
  void retry(const Error& error);
  void close();
  void flush();
  ssize_t write_batch(size_t* asked);
  void retire(size_t taken);
  void want_room(bool wanted);
  void fail_soon(Error error);
  void fail(const Error& error);
  void cancel(std::optional<Loop::TimerId>& timer);

  Loop& loop_;
  Sink& sink_;
  const Options options_;
  const Failed failed_;

  State state_ = State::kIdle;
  Fd fd_;
  std::array<std::byte, kAnswerBytes> answer_{};
  size_t answer_filled_ = 0;
  Duration pause_;          // before the next dial
  std::string last_error_;  // of the dials so far
  std::optional<Loop::TimerId> deadline_;
  std::optional<Loop::TimerId> next_dial_;
  std::optional<Loop::TimerId> failure_;

  std::deque<Message> queue_;
  size_t front_taken_ = 0;  // bytes of the first message that the kernel has
  bool flushing_ = false;   // a Sink callback may send(): that only queues
  bool wants_room_ = false;
};

}  // namespace pliant
