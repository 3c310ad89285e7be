#include "pliant/runtime/store_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace pliant {
namespace {

using store::Box;
using store::TensorInfo;
using store::Version;

constexpr size_t kNamedMax = 8;
// A silent host must not use up the time of those that answer.
constexpr Duration kAnswerMax = std::chrono::seconds(5);

// A host that has, or knows of, something of the version.
struct Source {
  const StoreClient* client = nullptr;  // null: this one, which has what the base has
  StoreLook look;
};

// A piece that some host has.
struct Held {
  size_t source = 0;
  StorePull::Piece piece;
  Box box;
};

// All that is known of a tensor.
struct Known {
  TensorInfo info;
  std::vector<Box> here;                          // in the base
  std::vector<Held> there;                        // in the order of the sources
  std::vector<std::pair<uint32_t, Box>> written;  // by which host
};

class Gathering final {
 public:
  explicit Gathering(const GatherRequest& request) : request_(request) {}

  Result<Version::Shared> run() {
    if (enough_here()) return request_.base;
    PLIANT_TRY(look());
    while (true) {
      learn();
      auto pulls = choose();
      if (!pulls) return pulls.error();
      std::vector<store::VaultPart> parts;
      if (base_ != nullptr) parts = base_->parts();
      const auto moved = pull(*pulls, parts);
      if (!moved) return moved.error();
      // A host that was lost meanwhile: others may have the same.
      if (*moved) return Version::make(step_, epoch_, std::move(parts));
    }
  }

 private:
  Instant patience() const { return std::min(request_.deadline, now() + kAnswerMax); }
  bool enough_here();
  Status look();
  Result<uint64_t> newest();
  void learn();
  void learn_part(const store::Manifest& manifest,
                  const std::function<void(Known&, uint32_t, const Box&)>& add);
  Result<std::map<size_t, StorePull>> choose();
  Result<bool> pull(const std::map<size_t, StorePull>& pulls, std::vector<store::VaultPart>& parts);
  Error lost(const std::vector<std::string>& missing) const;

  const GatherRequest& request_;
  Version::Shared base_;
  uint64_t step_ = 0;
  uint32_t epoch_ = 0;
  std::vector<Source> sources_;
  std::vector<std::string> silent_;  // what hosts said that did not answer
  std::map<std::string, Known> tensors_;
};

// Then nobody is asked.
bool Gathering::enough_here() {
  if (request_.base == nullptr || request_.wanted.empty()) return false;
  base_ = request_.base;
  learn();
  const bool enough = choose().ok();
  base_ = nullptr;
  return enough;
}

Result<uint64_t> Gathering::newest() {
  if (request_.base != nullptr) return request_.base->step();
  std::optional<StoreSummary> best;
  for (const StoreClient& other : request_.others) {
    const auto list = other.list(patience());
    if (!list) {
      silent_.push_back(list.error().message);
      continue;
    }
    for (const StoreSummary& version : *list)
      if (!best || std::pair(version.epoch, version.step) > std::pair(best->epoch, best->step))
        best = version;
  }
  if (best) return best->step;
  std::string message = "no host holds a complete version";
  if (!silent_.empty()) message += fmt::format("; {}", silent_.front());
  return invalid(message);
}

// What a host says of another epoch is another version of the same step.
Status Gathering::look() {
  if (request_.step == store::Vault::kNewest) {
    const auto step = newest();
    if (!step) return step.error();
    step_ = *step;
    silent_.clear();
  } else {
    step_ = request_.step;
  }
  if (request_.own != nullptr) {
    auto look = request_.own->look(step_, patience());
    if (look) {
      sources_.push_back({nullptr, std::move(*look)});
    } else if (look.code() != Code::kInvalid) {
      silent_.push_back(look.error().message);
    }
  }
  std::optional<Error> refusal;
  for (const StoreClient& other : request_.others) {
    auto look = other.look(step_, patience());
    if (look) {
      sources_.push_back({&other, std::move(*look)});
    } else if (look.code() == Code::kInvalid) {
      refusal = look.error();
    } else {
      silent_.push_back(look.error().message);
    }
  }
  if (request_.base == nullptr && sources_.empty()) {
    if (!silent_.empty()) return invalid(silent_.front());
    return refusal ? *refusal : invalid("the job has no hosts that could be asked");
  }
  if (request_.base != nullptr) epoch_ = request_.base->epoch();
  for (const Source& source : sources_) epoch_ = std::max(epoch_, source.look.epoch);
  std::erase_if(sources_, [&](const Source& source) { return source.look.epoch != epoch_; });
  if (request_.base != nullptr && request_.base->epoch() == epoch_) base_ = request_.base;
  return {};
}

void Gathering::learn_part(const store::Manifest& manifest,
                           const std::function<void(Known&, uint32_t, const Box&)>& add) {
  for (uint32_t i = 0; i < manifest.pieces.size(); ++i) {
    const TensorInfo& info = manifest.tensors[manifest.pieces[i].tensor];
    Known& known = tensors_[info.name];
    if (known.info.name.empty()) known.info = info;
    // Those who disagree about a tensor speak of another state.
    if (known.info == info && !is_empty(manifest.pieces[i].box))
      add(known, i, manifest.pieces[i].box);
  }
}

void Gathering::learn() {
  tensors_.clear();
  if (base_ != nullptr)
    for (const store::VaultPart& part : base_->parts())
      learn_part(part.manifest,
                 [](Known& known, uint32_t, const Box& box) { known.here.push_back(box); });
  for (size_t s = 0; s < sources_.size(); ++s) {
    uint32_t number = 0;
    for (const StoreOutline& part : sources_[s].look.parts) {
      learn_part(part.manifest, [&](Known& known, uint32_t piece, const Box& box) {
        if (part.held && sources_[s].client != nullptr)
          known.there.push_back({s, {number, piece}, box});
        if (!part.held) known.written.emplace_back(part.host, box);
      });
      if (part.held) ++number;
    }
  }
}

void take_away(std::vector<Box>& rest, const Box& box) {
  std::vector<Box> next;
  for (const Box& part : rest) subtract(part, box, next);
  std::swap(rest, next);
}

// The pieces to pull from each source.
Result<std::map<size_t, StorePull>> Gathering::choose() {
  std::map<std::string, std::vector<Box>> rest;
  for (const StoreRange& range : request_.wanted) {
    const auto known = tensors_.find(range.tensor);
    if (known == tensors_.end())
      return invalid(
          fmt::format("step {} has no tensor '{}' on any host that answered; there are "
                      "{} others{}{}",
                      step_, range.tensor, tensors_.size(), silent_.empty() ? "" : "; ",
                      silent_.empty() ? "" : silent_.front()));
    const Box all = tensor::whole(known->second.info.shape);
    if (range.box && (range.box->dims != all.dims || !contains(all, *range.box)))
      return invalid(fmt::format("tensor '{}' is {}; it has no range {}", range.tensor,
                                 to_string(known->second.info), to_string(*range.box)));
    rest[range.tensor].push_back(range.box.value_or(all));
  }
  if (request_.wanted.empty()) {
    for (const auto& [name, known] : tensors_) {
      std::vector<Box>& boxes = rest[name];
      for (const Held& held : known.there) boxes.push_back(held.box);
      for (const auto& [host, box] : known.written) boxes.push_back(box);
    }
  }
  std::map<size_t, StorePull> pulls;
  std::vector<std::string> missing;
  for (auto& [name, boxes] : rest) {
    const Known& known = tensors_.at(name);
    std::erase_if(boxes, [](const Box& box) { return is_empty(box); });
    for (const Box& box : known.here) take_away(boxes, box);
    for (const Held& held : known.there) {
      if (std::ranges::none_of(boxes, [&](const Box& box) { return overlap(box, held.box); }))
        continue;
      StorePull& pull = pulls[held.source];
      pull.step = step_;
      pull.epoch = epoch_;
      pull.pieces.push_back(held.piece);
      take_away(boxes, held.box);
    }
    // Each place once, though several may have known of it.
    for (size_t i = 0; i < boxes.size(); ++i) {
      std::vector<Box> again = {boxes[i]};
      for (size_t k = 0; k < i; ++k) take_away(again, boxes[k]);
      if (again.empty()) continue;
      std::set<uint32_t> writers;
      for (const auto& [host, box] : known.written)
        if (overlap(box, boxes[i])) writers.insert(host);
      std::string text = fmt::format("{} of tensor '{}'", to_string(boxes[i]), name);
      for (const uint32_t host : writers) text += fmt::format(" (written on host {})", host);
      missing.push_back(std::move(text));
    }
  }
  if (!missing.empty()) return lost(missing);
  return pulls;
}

Error Gathering::lost(const std::vector<std::string>& missing) const {
  std::string text = fmt::format("step {}: no host has ", step_);
  for (size_t i = 0; i < missing.size() && i < kNamedMax; ++i)
    text += (i == 0 ? "" : ", nor ") + missing[i];
  if (missing.size() > kNamedMax)
    text += fmt::format(", nor {} more ranges", missing.size() - kNamedMax);
  for (const std::string& host : silent_) text += "; " + host;
  return invalid(text);
}

// False if a host was lost; it is no source any more.
Result<bool> Gathering::pull(const std::map<size_t, StorePull>& pulls,
                             std::vector<store::VaultPart>& parts) {
  for (const auto& [source, wanted] : pulls) {
    auto part = sources_[source].client->pull(wanted, patience());
    if (!part) {
      silent_.push_back(part.error().message);
      sources_.erase(sources_.begin() + static_cast<ptrdiff_t>(source));
      return false;
    }
    parts.push_back(std::move(*part));
  }
  return true;
}

}  // namespace

Result<Version::Shared> gather(const GatherRequest& request) { return Gathering(request).run(); }

}  // namespace pliant
