// Pliant as a contender, started by `pliant run`. --buffer says which memory it reduces:
//   registered  memory of session.allocate, in place: every rank gets a result of its own
//   shared      the same memory as input; the result is one that the ranks of a host share
//   plain       ordinary memory, in place
#include <memory>
#include <span>

#include "driver.h"
#include "pliant/runtime/session.h"

namespace {

using pliant::DType;
using pliant::Op;

void check(const pliant::Status& status) {
  if (!status.ok()) peers::fail("pliant: " + pliant::to_string(status.error()));
}

enum class Buffer { kRegistered, kShared, kPlain };

Buffer parse_buffer(const std::string& text) {
  if (text == "registered") return Buffer::kRegistered;
  if (text == "shared") return Buffer::kShared;
  if (text == "plain") return Buffer::kPlain;
  peers::fail("--buffer: unknown '" + text + "'");
}

class Pliant final : public peers::Contender {
 public:
  Pliant(pliant::Session& session, Buffer buffer) : session_(session), buffer_(buffer) {}

  int rank() const override { return static_cast<int>(session_.rank()); }
  int size() const override { return static_cast<int>(session_.size()); }

  void prepare(size_t count) override {
    count_ = count;
    if (buffer_ == Buffer::kPlain) {
      input_ = memory_.resize(count);
    } else {
      if (!registered_.empty()) session_.release(registered_);
      auto memory = session_.allocate(count * sizeof(float));
      if (!memory.ok()) peers::fail("pliant: " + pliant::to_string(memory.error()));
      registered_ = *memory;
      input_ = reinterpret_cast<float*>(registered_.data());
    }
    result_ = input_;
  }
  float* input() override { return input_; }
  const float* result() const override { return result_; }

  void all_reduce() override {
    if (buffer_ != Buffer::kShared) {
      check(session_.all_reduce("tensor", input_, input_, count_, DType::kF32, Op::kSum));
      return;
    }
    auto result = session_.all_reduce_shared("tensor", input_, count_, DType::kF32, Op::kSum);
    if (!result.ok()) peers::fail("pliant: " + pliant::to_string(result.error()));
    result_ = reinterpret_cast<const float*>(result->data());
  }
  void barrier() override { check(session_.barrier()); }
  float sum(float value) override {
    check(session_.all_reduce("number", &value, &value, 1, DType::kF32, Op::kSum));
    return value;
  }

 private:
  pliant::Session& session_;
  Buffer buffer_;
  size_t count_ = 0;
  peers::PlainMemory memory_;
  std::span<std::byte> registered_;
  float* input_ = nullptr;
  const float* result_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const Buffer buffer = parse_buffer(peers::argument(argc, argv, "--buffer", "registered"));
  auto session = pliant::Session::open();
  if (!session.ok()) peers::fail("pliant: " + pliant::to_string(session.error()));
  Pliant contender(**session, buffer);
  return peers::measure(contender, peers::parse_options(argc, argv));
}
