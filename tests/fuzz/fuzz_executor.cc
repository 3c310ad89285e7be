// Messages of any kind from peers of the job, in any order and in parts: the executor takes or
// refuses each, allocates within bounds, and its calls end one way or the other.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/collective/executor.h"

namespace {

using namespace pliant;

constexpr PeerId kSelf = {0, 0, 1};
constexpr PeerId kPeers[] = {kSelf, {1, 0, 1}, {2, 0, 1}};
constexpr PeerId kStranger = {7, 7, 7};
// What a message may make the executor allocate is bounded; what this program gives it is, too.
constexpr uint64_t kPayloadBytesHere = uint64_t{1} << 16;

// Takes messages and gives every payload back at once.
class Drain final : public Transport {
 public:
  Sink* sink = nullptr;
  Frame last;  // the newest that belongs to a call which goes on
  void add_peer(const Member&) override {}
  void send(PeerId, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie) override {
    PLIANT_CHECK(frame.payload_bytes == payload.size());
    if (frame.type != static_cast<uint8_t>(FrameType::kAbort)) last = frame;
    if (cookie != 0) sink->sent(cookie);
  }
  void forget(std::span<const std::byte>) override {}
  bool poll() override { return false; }
  bool linked(PeerId) const override { return false; }
  const char* name() const override { return "drain"; }
};

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
    std::memcpy(&value, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return value;
  }

 private:
  std::span<const uint8_t> rest_;
};

struct Job {
  Drain transport;
  Group group = make_group(kPeers, kSelf, Epoch{1});
  Executor executor{transport,
                    nullptr,
                    {.self = kSelf,
                     .epoch = Epoch{1},
                     .timeout = std::chrono::seconds(1),
                     .plan =
                         [](const Signature& signature, const Group&) {
                           Plan plan;
                           plan.strategy.kind = signature.count % 2 == 0 ? Strategy::Kind::kRing
                                                                         : Strategy::Kind::kStar;
                           plan.chunk_bytes = 64;
                           return plan;
                         },
                     .describe = [](PeerId peer) { return to_string(peer); }}};
  std::vector<std::byte> input = std::vector<std::byte>(1 << 18);
  std::vector<std::byte> output = std::vector<std::byte>(1 << 18);
  Execution* execution = nullptr;
  Frame own;  // a message as a peer that makes the same call would send it

  void call(Script& script) {
    if (execution != nullptr) return;
    Operation operation;
    operation.name = "call";
    operation.collective = static_cast<Collective>(script.byte() % kCollectives);
    operation.dtype = static_cast<DType>(script.byte() % kDTypes);
    operation.op = static_cast<Op>(script.byte() % kOps);
    operation.count = script.byte() * (script.byte() % 32 == 0 ? 40U : 1U);
    operation.root = script.byte() % 3;
    operation.input = input.data();
    operation.output = output.data();
    if (auto begun = executor.begin(operation, group)) execution = *begun;
    if (execution == nullptr) return;
    executor.adopt(*execution, Instant{});
    // Late enough that it asks the others: what it asks is what an equal call's messages look like.
    executor.advance_all(Instant{} + std::chrono::milliseconds(130));
    own = transport.last;
  }

  // A frame near to a right one, so that it gets past the first checks.
  Frame frame(Script& script) {
    Frame head = own;
    head.type = static_cast<uint8_t>(1 + script.byte() % 5);
    head.epoch = script.byte() % 16 == 0 ? 2 : 1;
    const uint8_t changes = script.byte();
    if (changes & 1) head.collective = script.byte();
    if (changes & 2) head.dtype = script.byte();
    if (changes & 4) head.op = script.byte();
    if (changes & 8) head.count = script.take<uint64_t>();
    if (changes & 16) head.key = script.take<uint64_t>();
    if (changes & 32) head.shape = script.take<uint32_t>();
    head.sequence += script.byte() % 8 == 0 ? script.byte() : 0;
    head.phase = static_cast<uint8_t>(script.byte() % 5);
    head.lane = script.byte() % 16 == 0 ? script.take<uint32_t>() : script.byte() % 24;
    head.payload_bytes = script.byte() % 4 == 0   ? script.take<uint64_t>()
                         : script.byte() % 2 == 0 ? 64
                                                  : script.byte();
    return head;
  }

  void message(Script& script) {
    const uint8_t who = script.byte();
    const PeerId from = who % 16 == 0 ? kStranger : kPeers[1 + who % 2];
    const Frame head = frame(script);
    auto place = executor.place(from, head);
    // A real transport refuses more than kPayloadBytesMax before it asks.
    if (!place) return executor.lost(from, place.error());
    if (head.payload_bytes > kPayloadBytesHere) return executor.lost(from, invalid("too large"));
    if (head.payload_bytes > 0) std::memset(*place, who, head.payload_bytes);
    if (script.byte() % 8 != 0) executor.arrived(from, head, *place);
  }

  void finish() {
    if (execution == nullptr || !execution->finished()) return;
    const Status status = execution->take_status();
    executor.release(*execution);
    execution = nullptr;
    own.sequence++;  // what comes next is early
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script script({data, size});
  auto job = std::make_unique<Job>();
  job->transport.sink = &job->executor;
  job->own.epoch = 1;
  // The key of "call" over this group, as the executor makes it.
  job->own.key = std::max<uint64_t>(1, hash64("call", job->group.id));
  while (!script.empty()) {
    switch (script.byte() % 4) {
      case 0: job->call(script); break;
      case 1:
        job->executor.advance_all(Instant{} + std::chrono::milliseconds(script.byte()));
        break;
      default: job->message(script); break;
    }
    job->finish();
  }
  // Whatever came, the deadline ends what is in flight.
  job->executor.advance_all(Instant{} + std::chrono::hours(1));
  job->executor.advance_all(Instant{} + std::chrono::hours(1));
  PLIANT_CHECK(job->execution == nullptr || job->execution->finished(),
               "a call outlives its deadline");
  return 0;
}
