// The text of a policy: whatever it is, a policy that takes signals, or one sentence of error.
#include <cstdint>
#include <cstring>
#include <string>

#include "pliant/policy/make_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto policy = pliant::make_policy(text);
  if (!policy) {
    PLIANT_CHECK(!policy.error().message.empty(), "an error says what is wrong");
    return 0;
  }
  // Signals that no sound job has, made of the text: decisions may be foolish, never undefined.
  pliant::Signals signals;
  signals.topology = text;
  for (uint64_t step = 0; step < 64; ++step) {
    uint64_t bits = step * 0x9e3779b97f4a7c15u;
    std::memcpy(&bits, data, size < sizeof bits ? size : sizeof bits);
    signals.step = step * (bits % 1000);
    signals.members = static_cast<int>((bits >> step % 32) % 64) + 1;
    signals.batch = bits >> step % 64;
    signals.reduced_bytes = bits % 7;
    signals.step_seconds = static_cast<double>(bits % 1001) * 1e-3;
    signals.wait_seconds = static_cast<double>(bits % 501) * 1e-3;
    signals.samples_per_second = static_cast<double>(signals.batch);
    signals.noise = pliant::GradientNoise{.scale = static_cast<double>(bits % 4096)};
    const pliant::Decision decision = (*policy)->after_step(signals);
    PLIANT_CHECK(!decision.members || *decision.members >= 1, "no job has no member");
    PLIANT_CHECK(decision.empty() || !decision.reason.empty(), "a decision has its reason");
  }
  return 0;
}
