#include "pliant/data/sampler_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "pliant/data/permutation.h"

namespace pliant {
namespace {

constexpr uint8_t kEncoding = 1;

std::string in_words(uint64_t epochs) {
  return epochs == 0 ? "go on for ever" : fmt::format("end after {} epochs", epochs);
}

}  // namespace

uint64_t SamplerOptions::batch_of(uint64_t members) const {
  if (batch_per_member == 0) return global_batch;
  // More than the whole dataset is never drawn, and the product of the two could overflow.
  return std::min(batch_per_member, samples) * members;
}

Status check(const SamplerOptions& options) {
  if (options.samples < 1 || options.samples > Permutation::kSizeMax)
    return invalid(fmt::format("a dataset has 1 to 2^48 samples, not {}", options.samples));
  if (options.global_batch < 1 && options.batch_per_member < 1)
    return invalid("a batch has at least one sample: give a global batch or one per member");
  if (options.global_batch != 0 && options.batch_per_member != 0)
    return invalid(
        fmt::format("a sampler has a global batch ({}) or a batch per member ({}), not "
                    "both",
                    options.global_batch, options.batch_per_member));
  if (options.epochs > SamplerOptions::kEpochsMax)
    return invalid(fmt::format("{} epochs are too many; 0 means for ever", options.epochs));
  return {};
}

std::string difference(const SamplerOptions& mine, const SamplerOptions& theirs) {
  if (mine.samples != theirs.samples)
    return fmt::format("its dataset has {} samples, the others' {}", mine.samples, theirs.samples);
  if (mine.seed != theirs.seed)
    return fmt::format("its sampler has seed {}, the others' {}", mine.seed, theirs.seed);
  if (mine.shuffle != theirs.shuffle)
    return theirs.shuffle ? "the others shuffle their samples, it does not"
                          : "it shuffles its samples, the others do not";
  if (mine.epochs != theirs.epochs)
    return fmt::format("it would {}, the others {}", in_words(mine.epochs),
                       in_words(theirs.epochs));
  if ((mine.batch_per_member != 0) != (theirs.batch_per_member != 0))
    return theirs.batch_per_member != 0 ? "the others have a batch per member, it a global batch"
                                        : "it has a batch per member, the others a global batch";
  if (mine.constant_batch != theirs.constant_batch)
    return theirs.constant_batch ? "the others keep the global batch constant, it does not"
                                 : "it keeps the global batch constant, the others do not";
  return {};
}

std::vector<std::byte> encode(const SamplerOptions& options) {
  Writer writer;
  writer.put(kEncoding);
  writer.put(options.samples);
  writer.put(options.global_batch);
  writer.put(options.batch_per_member);
  writer.put(options.seed);
  writer.put(options.epochs);
  writer.put(static_cast<uint8_t>(options.shuffle ? 1 : 0));
  writer.put(static_cast<uint8_t>(options.constant_batch ? 1 : 0));
  return writer.bytes();
}

Result<SamplerOptions> decode_sampler_options(Bytes bytes) {
  Reader reader(bytes);
  const auto encoding = reader.take<uint8_t>();
  SamplerOptions options;
  options.samples = reader.take<uint64_t>();
  options.global_batch = reader.take<uint64_t>();
  options.batch_per_member = reader.take<uint64_t>();
  options.seed = reader.take<uint64_t>();
  options.epochs = reader.take<uint64_t>();
  const auto shuffle = reader.take<uint8_t>();
  const auto constant = reader.take<uint8_t>();
  if (!reader.finished() || encoding != kEncoding || shuffle > 1 || constant > 1)
    return invalid("the options of a sampler are cut short, or written in another way");
  options.shuffle = shuffle != 0;
  options.constant_batch = constant != 0;
  PLIANT_TRY(check(options));
  return options;
}

}  // namespace pliant
