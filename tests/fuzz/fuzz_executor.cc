// Three executors whose messages are delayed, doubled, lost and falsified as the input says: each
// takes or refuses what comes, allocates within bounds, and every call ends by its deadline.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/collective/executor.h"

namespace {

using namespace pliant;

constexpr Rank kRanks = 3;
constexpr size_t kBufferBytes = 1 << 14;
// Forged payloads are as long as their frames say, up to here; beyond, the link breaks.
constexpr uint64_t kForgedBytesMax = 1 << 16;
constexpr size_t kMessagesMax = 4096;

PeerId peer(Rank rank) { return {static_cast<uint32_t>(rank), 0, 1}; }

// Reads the input as a script; an exhausted one gives zeroes.
class Script {
 public:
  explicit Script(std::span<const uint8_t> bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  uint8_t byte() { return take<uint8_t>(); }
  template <typename T>
  T take() {
    T value{};
    const size_t size = std::min(sizeof(T), rest_.size());
    if (size > 0) std::memcpy(&value, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return value;
  }

 private:
  std::span<const uint8_t> rest_;
};

struct Message {
  Rank from;
  Rank to;
  Frame frame;
  std::vector<std::byte> payload;
  std::byte* place = nullptr;  // of one that has begun to arrive
};

// Keeps a copy of what is sent, for the script to deliver.
class Post final : public Transport {
 public:
  Post(Rank self, std::deque<Message>& queue, std::deque<Message>& arriving)
      : self_(self), queue_(queue), arriving_(arriving) {}
  Sink* sink = nullptr;
  void add_peer(const Member&) override {}
  void send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie) override {
    PLIANT_CHECK(frame.payload_bytes == payload.size());
    PLIANT_CHECK(queue_.size() < kMessagesMax, "an executor floods its peers");
    queue_.push_back(
        {self_, static_cast<Rank>(to.host), frame, {payload.begin(), payload.end()}, nullptr});
    if (cookie != 0) sink->sent(cookie);
  }
  // What is being received there goes to waste.
  void forget(std::span<const std::byte> memory) override {
    std::erase_if(arriving_, [&](const Message& message) {
      return message.to == self_ && message.place < memory.data() + memory.size() &&
             memory.data() < message.place + message.payload.size();
    });
  }
  bool poll() override { return false; }
  bool linked(PeerId) const override { return true; }
  const char* name() const override { return "post"; }

 private:
  const Rank self_;
  std::deque<Message>& queue_;
  std::deque<Message>& arriving_;
};

struct Process {
  Process(Rank rank, std::deque<Message>& queue, std::deque<Message>& arriving)
      : transport(rank, queue, arriving),
        group(make_group(std::vector{peer(0), peer(1), peer(2)}, peer(rank), Epoch{1})),
        executor(transport, nullptr,
                 {.self = peer(rank),
                  .epoch = Epoch{1},
                  .timeout = std::chrono::seconds(1),
                  .plan = plan,
                  .describe = [](PeerId id) { return to_string(id); }}) {
    transport.sink = &executor;
  }

  static CallPlan plan(const Signature& signature, const Group&) {
    constexpr Strategy::Kind kKinds[] = {Strategy::Kind::kRing, Strategy::Kind::kStar,
                                         Strategy::Kind::kClique, Strategy::Kind::kBinaryTree};
    CallPlan plan;
    plan.strategy.kind = kKinds[signature.count % std::size(kKinds)];
    plan.chunk_bytes = 64;
    return plan;
  }

  Post transport;
  Group group;
  Executor executor;
  std::vector<std::byte> memory = std::vector<std::byte>(2 * kBufferBytes);
  Execution* execution = nullptr;
};

class Job {
 public:
  explicit Job(Script& script) : script_(script) {
    for (Rank rank = 0; rank < kRanks; ++rank)
      processes_.push_back(std::make_unique<Process>(rank, queue_, arriving_));
  }

  void run() {
    while (!script_.empty()) {
      switch (script_.byte() % 8) {
        case 0: call(); break;
        case 1: advance(std::chrono::milliseconds(script_.byte() % 16)); break;
        case 2: arrive(); break;
        default: deliver(); break;
      }
    }
    // Whatever came, the deadline ends what is in flight.
    for (int i = 0; i < 3; ++i) advance(std::chrono::hours(1));
    for (const auto& process : processes_)
      PLIANT_CHECK(process->execution == nullptr, "a call outlives its deadline");
  }

 private:
  // All ranks make the same call, or one of them another.
  void call() {
    Operation operation;
    operation.name = "call";
    operation.collective = static_cast<Collective>(script_.byte() % 9);  // all but send, receive
    operation.dtype = static_cast<DType>(script_.byte() % kDTypes);
    operation.op = static_cast<Op>(script_.byte() % kOps);
    operation.count = script_.byte() % 16 == 0 ? script_.byte() * 2U : script_.byte() % 64;
    operation.root = script_.byte() % kRanks;
    const int other = script_.byte() % 16;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      Process& process = *processes_[static_cast<size_t>(rank)];
      if (process.execution != nullptr) continue;
      operation.input = process.memory.data();
      operation.output = process.memory.data() + kBufferBytes;
      Operation mine = operation;
      if (rank == other) mine.count += 1;
      auto begun = process.executor.begin(mine, process.group);
      if (!begun) continue;
      process.execution = *begun;
      process.executor.adopt(**begun, now_);
      finish(process);
    }
  }

  void advance(Duration time) {
    now_ += time;
    for (const auto& process : processes_) {
      process->executor.advance_all(now_);
      finish(*process);
    }
  }

  void finish(Process& process) {
    if (process.execution == nullptr || !process.execution->finished()) return;
    const Status status = process.execution->take_status();
    PLIANT_CHECK(status.ok() || !status.error().message.empty(), "an error says what is wrong");
    process.executor.release(*process.execution);
    process.execution = nullptr;
  }

  // Mostly the oldest message as it is: otherwise no call would ever get far.
  void deliver() {
    if (queue_.empty()) return;
    const uint8_t how = script_.byte();
    const auto at = queue_.begin() + (how % 4 == 0 ? script_.byte() % queue_.size() : 0);
    Message message = *at;
    if (how % 16 != 1) queue_.erase(at);  // else it comes again
    if (how % 16 == 2) return;            // lost
    if (how % 16 == 3) forge(message);
    Process& to = *processes_[static_cast<size_t>(message.to)];
    auto place = to.executor.place(peer(message.from), message.frame);
    if (!place) return break_link(message, place.error());
    if (message.payload.size() != message.frame.payload_bytes)
      return break_link(message, invalid("cut short"));
    message.place = *place;
    arriving_.push_back(std::move(message));
    // Others may arrive, and calls begin and end, before this one is complete.
    if (how % 16 != 5) arrive();
  }

  // Completes the newest message that has begun to arrive.
  void arrive() {
    if (arriving_.empty()) return;
    const Message message = std::move(arriving_.back());
    arriving_.pop_back();
    Process& to = *processes_[static_cast<size_t>(message.to)];
    if (!message.payload.empty())
      std::memcpy(message.place, message.payload.data(), message.payload.size());
    to.executor.arrived(peer(message.from), message.frame, message.place);
    finish(to);
  }

  void forge(Message& message) {
    Frame& frame = message.frame;
    switch (script_.byte() % 12) {
      case 0: frame.type = script_.byte(); break;
      case 1: frame.collective = script_.byte(); break;
      case 2: frame.dtype = script_.byte(); break;
      case 3: frame.op = script_.byte(); break;
      case 4: frame.phase = script_.byte(); break;
      case 5: frame.epoch = script_.byte(); break;
      case 6: frame.sequence += script_.byte(); break;
      case 7: frame.key ^= script_.byte(); break;
      case 8: frame.count = script_.take<uint64_t>(); break;
      case 9: frame.lane = script_.take<uint32_t>(); break;
      case 10: frame.shape = script_.take<uint32_t>(); break;
      default: {
        frame.payload_bytes = script_.byte() % 2 == 0 ? script_.byte() : script_.take<uint64_t>();
        if (frame.payload_bytes <= kForgedBytesMax) message.payload.resize(frame.payload_bytes);
        break;
      }
    }
  }

  void break_link(const Message& message, const Error& error) {
    const auto end = [&](Rank at, Rank gone) {
      std::erase_if(arriving_, [&](const Message& m) { return m.to == at && m.from == gone; });
      processes_[static_cast<size_t>(at)]->executor.lost(peer(gone), error);
      finish(*processes_[static_cast<size_t>(at)]);
    };
    end(message.to, message.from);
    end(message.from, message.to);
  }

  Script& script_;
  std::deque<Message> queue_;
  std::deque<Message> arriving_;
  std::vector<std::unique_ptr<Process>> processes_;
  Instant now_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script script({data, size});
  Job(script).run();
  return 0;
}
