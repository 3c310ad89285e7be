#include "pliant/training/synchroniser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "pliant/training/blend.h"

namespace pliant {
namespace {

constexpr const char* kPublishedName = "pliant/model";
// The newest is what peers ask for; the other's memory is used again.
constexpr int kPublishedKept = 2;

// Spreads a number over all bits (the finaliser of SplitMix64).
uint64_t spread(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

bool is_known(Synchronisation synchronisation) {
  return synchronisation <= Synchronisation::kPairAveraging;
}

Status check_bucket(const Bucket& bucket) {
  if (bucket.name.empty() || bucket.name.size() > 100)
    return invalid("the name of a bucket has 1 to 100 characters");
  if (bucket.parameters == nullptr && bucket.count > 0)
    return invalid(fmt::format("bucket '{}' has no memory for its parameters", bucket.name));
  if (bucket.gradients == nullptr &&
      (bucket.dtype == DType::kBool || bucket.dtype >= DType::kF8E4M3))
    return invalid(fmt::format("bucket '{}' is {}, which cannot be averaged", bucket.name,
                               to_string(bucket.dtype)));
  if (bucket.gradients != nullptr && !can_blend(bucket.dtype))
    return invalid(fmt::format("bucket '{}' is {}: parameters are f16, bf16, f32 or f64",
                               bucket.name, to_string(bucket.dtype)));
  return {};
}

}  // namespace

std::optional<Rank> choose_partner(uint64_t seed, uint64_t step, PeerId self,
                                   std::span<const PeerId> members) {
  const auto at = std::find(members.begin(), members.end(), self);
  const uint64_t others = members.size() - (at != members.end() ? 1 : 0);
  if (others == 0) return std::nullopt;
  const uint64_t drawn = spread(spread(spread(seed) ^ step) ^ self.packed()) % others;
  const bool behind_self =
      at != members.end() && drawn >= static_cast<uint64_t>(at - members.begin());
  return static_cast<Rank>(drawn + (behind_self ? 1 : 0));
}

// ---- Life -------------------------------------------------------------------------------------

Result<std::unique_ptr<Synchroniser>> Synchroniser::make(Session& session,
                                                         std::vector<Bucket> buckets,
                                                         const Options& options) {
  if (!is_known(options.synchronisation)) return invalid("there is no such synchronisation");
  if (options.compression > Compression::kInt8) return invalid("there is no such compression");
  if (!(options.alpha > 0 && options.alpha <= 1))
    return invalid(fmt::format("alpha is {}: it must be above 0 and at most 1", options.alpha));
  std::unordered_set<std::string> names;
  bool has_gradients = false;
  std::vector<Part> parts;
  for (Bucket& bucket : buckets) {
    PLIANT_TRY(check_bucket(bucket));
    if (!names.insert(bucket.name).second)
      return invalid(fmt::format("there are two buckets '{}'", bucket.name));
    has_gradients = has_gradients || bucket.gradients != nullptr;
    Part& part = parts.emplace_back();
    part.gradients_name = "pliant/gradients/" + bucket.name;
    part.model_name = "pliant/models/" + bucket.name;
    if (options.compression != Compression::kNone && bucket.gradients != nullptr &&
        bucket.dtype == DType::kF32)
      part.compressed = std::make_unique<CompressedGradients>(
          part.gradients_name, std::span(static_cast<float*>(bucket.gradients), bucket.count));
    part.bucket = std::move(bucket);
  }
  if (!has_gradients) return invalid("a synchroniser needs a bucket with gradients");
  std::unique_ptr<Synchroniser> made(new Synchroniser(session, std::move(parts), options));
  PLIANT_TRY(made->register_state());
  return made;
}

Synchroniser::Synchroniser(Session& session, std::vector<Part> parts, const Options& options)
    : session_(session),
      parts_(std::move(parts)),
      may_differ_(options.may_switch || options.synchronisation != Synchronisation::kSynchronous),
      share_results_(options.share_results) {
  agreed_.seed = options.seed;
  agreed_.alpha = options.alpha;
  agreed_.synchronisation = options.synchronisation;
  agreed_.compression = options.compression;
  for (const Part& part : parts_)
    if (part.is_model()) model_.push_back(&part);
  // Wide elements first, so that all stand aligned.
  std::stable_sort(model_.begin(), model_.end(), [](const Part* left, const Part* right) {
    return size_of(left->bucket.dtype) > size_of(right->bucket.dtype);
  });
}

Synchroniser::~Synchroniser() = default;

Status Synchroniser::register_state() {
  // A worker that would hand in something else than the others is refused by this name.
  PLIANT_TRY(session_.register_value(
      fmt::format("pliant/synchroniser: buckets with gradients {}, compression {}", model_.size(),
                  to_string(agreed_.compression)),
      agreed_));
  const StateKind kind = may_differ_ ? StateKind::kOwn : StateKind::kEqual;
  for (Part& part : parts_) {
    const std::span<std::byte> memory(static_cast<std::byte*>(part.bucket.parameters),
                                      part.bytes());
    PLIANT_TRY(session_.register_state(part.bucket.name, memory, part.bucket.dtype, kind));
    if (part.compressed && agreed_.compression == Compression::kInt8)
      PLIANT_TRY(session_.register_state("pliant/quanta/" + part.bucket.name,
                                         std::as_writable_bytes(part.compressed->quanta()),
                                         DType::kF32));
  }
  return {};
}

Synchronisation Synchroniser::synchronisation() const { return agreed_.synchronisation; }

Status Synchroniser::switch_to(Synchronisation synchronisation) {
  if (open_)
    return invalid(fmt::format("step {} is open: switch between two steps", step_.number()));
  if (!is_known(synchronisation)) return invalid("there is no such synchronisation");
  const bool to_synchronous = synchronisation == Synchronisation::kSynchronous;
  if (!to_synchronous && !may_differ_)
    return invalid(
        fmt::format("cannot switch to {}: the models are registered as equal on all "
                    "members; set may_switch when the synchroniser is made",
                    to_string(synchronisation)));
  if (synchronisation == agreed_.synchronisation) return {};
  agreed_.equalise = to_synchronous ? 1 : 0;
  agreed_.synchronisation = synchronisation;
  agreed_.since = last_step_ + 1;
  for (Part& part : parts_)
    if (part.compressed) part.compressed->forget();
  return {};
}

// ---- A step -----------------------------------------------------------------------------------

bool Synchroniser::averages() const {
  return agreed_.synchronisation == Synchronisation::kModelAveraging || agreed_.equalise != 0;
}

Status Synchroniser::begin(const Step& step) {
  if (!step) return invalid("there is no step to begin");
  if (open_) return invalid(fmt::format("step {} was begun and not committed", step_.number()));
  step_ = step;
  open_ = true;
  own_samples_ = step_.samples().size();
  handed_in_ = 0;
  reduced_bytes_ = 0;
  last_pull_.reset();
  for (Part& part : parts_) {
    part.handed_in = false;
    if (part.compressed && synchronous())
      part.compressed->begin(compression_now(), session_.size());
  }
  if (agreed_.synchronisation == Synchronisation::kPairAveraging) start_pull();
  return averages() ? hand_in_models() : Status{};
}

// They are not changed before the commit, so that this runs while gradients are computed.
Status Synchroniser::hand_in_models() {
  for (const Part& part : parts_) {
    if (!averaged(part)) continue;
    PLIANT_TRY(step_.all_reduce(part.model_name, part.bucket.parameters, part.bucket.count,
                                part.bucket.dtype, Op::kSum));
    reduced_bytes_ += part.bytes();
  }
  step_.start();
  return {};
}

Status Synchroniser::ready(size_t bucket) {
  if (!open_) return invalid("ready() outside a step: begin() one first");
  if (bucket >= parts_.size() || !parts_[bucket].is_model())
    return invalid(fmt::format("there is no bucket {} with gradients", bucket));
  Part& part = parts_[bucket];
  if (part.handed_in)
    return invalid(fmt::format("bucket '{}' was handed in twice in a step", part.bucket.name));
  part.handed_in = true;
  ++handed_in_;
  if (!synchronous()) return {};
  PLIANT_TRY(hand_in_gradients(part));
  // The last one is run by commit(), which is faster: nothing is left to be computed.
  if (handed_in_ < model_.size()) step_.start();
  return {};
}

// Whoever is alone has nothing to gain. All that is the same on all members of a step: others could
// only have joined before it, and it is for those who are in it that the numbers must agree.
Compression Synchroniser::compression_now() const {
  if (session_.size() == 1) return Compression::kNone;
  const bool int8 = agreed_.compression == Compression::kInt8;
  return int8 && agreed_.crowded != 0 ? Compression::kNone : agreed_.compression;
}

Status Synchroniser::hand_in_gradients(Part& part) {
  if (part.compressed) {
    reduced_bytes_ += part.compressed->sent_bytes();
    return part.compressed->hand_in(step_);
  }
  reduced_bytes_ += part.bytes();
  return step_.all_reduce(part.gradients_name, part.bucket.gradients, part.bucket.count,
                          part.bucket.dtype, Op::kMean);
}

Status Synchroniser::hand_in_rest() {
  for (size_t i = 0; i < parts_.size(); ++i)
    if (parts_[i].is_model() && !parts_[i].handed_in) PLIANT_TRY(ready(i));
  // A member that dies counts if it has handed everything in. Its model alone, handed in when the
  // step began, must not make its samples count.
  if (synchronous() || !averages() || !session_.has_sampler()) return {};
  return step_.all_reduce("pliant/done", &done_, 1, DType::kU8, Op::kMax);
}

Result<bool> Synchroniser::commit() {
  if (!open_) return invalid("commit() outside a step: begin() one first");
  PLIANT_TRY(hand_in_rest());
  const Instant began = now();
  const Status committed = step_.commit();
  exposed_ = now() - began;
  if (!committed.ok()) {
    open_ = false;
    if (committed.code() == Code::kCancelled) return false;
    return committed.error();
  }
  if (step_.more()) {
    own_samples_ += step_.samples().size();
    handed_in_ = 0;
    for (Part& part : parts_) part.handed_in = false;
    if (averages()) PLIANT_TRY(hand_in_models());
    return false;
  }
  open_ = false;
  last_step_ = step_.number();
  PLIANT_TRY(draw_together());
  if (agreed_.synchronisation == Synchronisation::kPairAveraging) take_pull();
  exposed_ = now() - began;
  PLIANT_TRY(take_gradients());
  return true;
}

// Everybody has the same bits of the sum: models that are made equal are, to the bit.
Status Synchroniser::draw_together() {
  if (!averages()) return {};
  const int members = std::max(1, step_.contributors());
  for (const Part& part : parts_) {
    if (!averaged(part)) continue;
    const auto sum = step_.result(part.model_name);
    if (!sum) return sum.error();
    const Bucket& bucket = part.bucket;
    if (agreed_.equalise != 0 || agreed_.alpha == 1) {
      divide(bucket.dtype, bucket.parameters, sum->data(), bucket.count, members);
    } else {
      blend({.dtype = bucket.dtype,
             .values = bucket.parameters,
             .others = sum->data(),
             .count = bucket.count,
             .weight = agreed_.alpha,
             .divisor = members});
    }
  }
  agreed_.equalise = 0;
  return {};
}

Status Synchroniser::take_gradients() {
  for (Part& part : parts_) {
    if (!part.is_model()) continue;
    const Bucket& bucket = part.bucket;
    part.shared = nullptr;
    if (synchronous()) {
      PLIANT_TRY(take_synchronous(part));
    } else if (session_.has_sampler() && own_samples_ > 1) {
      divide(bucket.dtype, bucket.gradients, bucket.gradients, bucket.count,
             static_cast<int>(own_samples_));
    }
  }
  return {};
}

Status Synchroniser::take_synchronous(Part& part) {
  if (part.compressed) {
    const uint64_t divisor = session_.has_sampler() ? step_.contributed_samples()
                                                    : static_cast<uint64_t>(step_.contributors());
    PLIANT_TRY(part.compressed->take(step_, std::max<uint64_t>(1, divisor)));
    agreed_.crowded = step_.contributors() > kInt8MembersMax ? 1 : 0;
    return {};
  }
  const auto result = step_.result(part.gradients_name);
  if (!result) return result.error();
  if (share_results_) {
    part.shared = result->data();
  } else if (part.bucket.count > 0) {
    std::memcpy(part.bucket.gradients, result->data(), part.bytes());
  }
  return {};
}

std::span<const std::byte> Synchroniser::gradients(size_t bucket) const {
  if (bucket >= parts_.size() || !parts_[bucket].is_model()) return {};
  const Part& part = parts_[bucket];
  const auto* own = static_cast<const std::byte*>(part.bucket.gradients);
  return {part.shared != nullptr ? part.shared : own, part.bytes()};
}

// ---- Pair averaging ---------------------------------------------------------------------------

void Synchroniser::start_pull() {
  const Group& world = session_.world();
  partner_ = choose_partner(agreed_.seed, step_.number(), world.peer(world.self), world.members);
  if (!partner_) return;
  partner_id_ = world.peer(*partner_);
  pull_ = session_.start_request(*partner_, kPublishedName, Session::kNewest);
}

// A whole model is one value, so that its parts are always of one step.
void Synchroniser::take_pull() {
  if (!partner_) return;
  partner_.reset();
  const auto pulled = pull_.wait();
  size_t bytes = 0;
  for (const Part* part : model_) bytes += part->bytes();
  // One from before this way of averaging began may be far behind.
  if (!pulled || pulled->version < agreed_.since || pulled->bytes.size() != bytes) {
    ++pulls_missed_;
    return;
  }
  last_pull_ = Pull{partner_id_, pulled->version};
  const std::byte* at = pulled->bytes.data();
  for (const Part* part : model_) {
    blend({.dtype = part->bucket.dtype,
           .values = part->bucket.parameters,
           .others = at,
           .count = part->bucket.count,
           .weight = 0.5});
    at += part->bytes();
  }
}

Status Synchroniser::applied() {
  if (open_) return invalid("applied() inside a step: commit() it first");
  if (agreed_.synchronisation != Synchronisation::kPairAveraging || last_step_ == 0) return {};
  std::vector<Bytes> model;
  for (const Part* part : model_)
    model.push_back({static_cast<const std::byte*>(part->bucket.parameters), part->bytes()});
  return session_.save_parts(kPublishedName, last_step_, model, kPublishedKept);
}

}  // namespace pliant
