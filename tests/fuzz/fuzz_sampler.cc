// The decoders of a sampler's state, of its options and of redeals: whatever the bytes, they
// return. A state that is accepted has one encoding and is the beginning of a step that can be
// committed; redeals lose no position, whatever parts they give.
#include <algorithm>
#include <cstdint>
#include <span>

#include "pliant/base/check.h"
#include "pliant/data/redeal.h"
#include "pliant/data/sampler.h"

namespace {

void redeal_by(pliant::Bytes bytes) {
  using namespace pliant;
  constexpr size_t kMembers = 3;
  const auto redeals = decode_redeals(bytes, bytes.size() / kMembers, kMembers);
  if (!redeals) return;
  PLIANT_CHECK(std::ranges::equal(encode(*redeals), bytes), "redeals have one encoding");
  Draw draw{.epoch = 0, .members = {{{0, 3}}, {{3, 5}}, {{5, 7}}}};
  for (const Redeal& redeal : *redeals) apply(redeal, draw);
  PLIANT_CHECK(draw.samples() == 7, "a redeal loses nothing and adds nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant;
  const Bytes bytes = std::as_bytes(std::span(data, size));
  redeal_by(bytes);
  if (const auto options = decode_sampler_options(bytes))
    PLIANT_CHECK(std::ranges::equal(encode(*options), bytes), "options have one encoding");
  const auto state = decode_sampler_state(bytes);
  if (!state) return 0;
  PLIANT_CHECK(std::ranges::equal(encode(*state), bytes), "a state has one encoding");
  // The smallest dataset that has the cursor, or a larger one.
  const uint64_t samples = std::max<uint64_t>(state->cursor + (size % 2), 1);
  auto sampler = Sampler::make({.samples = samples, .global_batch = 7, .epochs = 0}, *state);
  if (!sampler) return 0;
  const bool contributed[] = {true, false, true};
  const uint64_t consumed = state->consumed_in_epoch();
  const Draw draw = sampler->draw(3);
  PLIANT_CHECK(draw.samples() == std::min<uint64_t>(7, samples - consumed), "a draw is full");
  sampler->commit(draw, contributed);
  const uint64_t after = consumed + contributed_samples(draw, contributed);
  PLIANT_CHECK(after == samples ? sampler->state().epoch == state->epoch + 1
                                : sampler->state().consumed_in_epoch() == after,
               "what was contributed is consumed");
  return 0;
}
