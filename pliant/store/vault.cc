#include "pliant/store/vault.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "pliant/base/checksum.h"

namespace pliant::store {
namespace {

// Pieces that overlap each other in more ways than this are nobody's training state.
constexpr size_t kRestMax = size_t{1} << 16;

// Calls `use` with each piece that has something of `box` which no piece before it had; returns
// what none has.
Result<std::vector<Box>> walk(const std::vector<Version::Piece>& pieces, const Box& box,
                              const std::function<void(const Version::Piece&)>& use) {
  std::vector<Box> rest;
  if (!is_empty(box)) rest.push_back(box);
  std::vector<Box> next;
  for (const Version::Piece& piece : pieces) {
    if (rest.empty()) break;
    if (is_empty(piece.box)) continue;
    if (std::ranges::none_of(rest, [&](const Box& part) { return overlap(part, piece.box); }))
      continue;
    use(piece);
    next.clear();
    for (const Box& part : rest) subtract(part, piece.box, next);
    std::swap(rest, next);
    if (rest.size() > kRestMax)
      return invalid("the pieces overlap each other in too many ways; cut them along common lines");
  }
  return rest;
}

}  // namespace

// ---- A version --------------------------------------------------------------------------------

Result<Version::Shared> Version::make(uint64_t step, uint32_t epoch, std::vector<VaultPart> parts) {
  std::shared_ptr<Version> version(new Version(step, epoch));
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string_view, size_t> numbers;
  version->parts_ = std::move(parts);
  for (const VaultPart& part : version->parts_) {
    const Manifest& manifest = part.manifest;
    PLIANT_TRY(check(manifest));
    if (manifest.memory_bytes != part.memory->bytes().size())
      return invalid("a list of tensors does not fit its memory");
    version->memory_bytes_ += manifest.memory_bytes;
    for (const TensorInfo& info : manifest.tensors) {
      const auto [place, is_new] = numbers.emplace(info.name, tensors.size());
      if (is_new) {
        tensors.push_back(info);
      } else if (const TensorInfo& other = tensors[place->second]; other != info) {
        return invalid(fmt::format("tensor '{}' is {} to one writer and {} to another", info.name,
                                   to_string(other), to_string(info)));
      }
    }
  }
  version->pieces_.resize(tensors.size());
  for (const VaultPart& part : version->parts_) {
    for (const ManifestPiece& piece : part.manifest.pieces) {
      const size_t number = numbers.at(part.manifest.tensors[piece.tensor].name);
      version->pieces_[number].push_back(
          {piece.box, part.memory->bytes().subspan(piece.offset, part.manifest.piece_bytes(piece)),
           piece.checksum});
    }
  }
  auto collection = tensor::Collection::make(std::move(tensors));
  if (!collection) return collection.error();
  version->tensors_ = std::move(*collection);
  return Shared(std::move(version));
}

Result<size_t> Version::find(std::string_view name) const {
  const auto number = tensors_.find(name);
  if (!number)
    return invalid(
        fmt::format("step {} has no tensor '{}'; it has {} others", step_, name, tensors_.size()));
  return *number;
}

Status Version::read(size_t tensor, const Box& box, std::span<std::byte> to) const {
  const TensorInfo& info = tensors_[tensor];
  if (box.dims != info.shape.size() || !contains(tensor::whole(info.shape), box))
    return invalid(fmt::format("tensor '{}' is {}; it has no range {}", info.name, to_string(info),
                               to_string(box)));
  const size_t element_bytes = size_of(info.dtype);
  if (to.size() != volume(box) * element_bytes)
    return invalid(fmt::format("the range {} of tensor '{}' has {} bytes, not {}", to_string(box),
                               info.name, volume(box) * element_bytes, to.size()));
  const auto rest = walk(pieces_[tensor], box, [&](const Piece& piece) {
    copy_common({piece.box, tensor::packed_strides(piece.box), piece.elements}, box, to,
                element_bytes);
  });
  if (!rest) return rest.error();
  if (rest->empty()) return {};
  return invalid(fmt::format("step {}: this host does not have the range {} of tensor '{}'", step_,
                             to_string(rest->front()), info.name));
}

Result<uint64_t> Version::covered(size_t tensor) const {
  const Box all = tensor::whole(tensors_[tensor].shape);
  const auto rest = walk(pieces_[tensor], all, [](const Piece&) {});
  if (!rest) return rest.error();
  uint64_t missing = 0;
  for (const Box& box : *rest) missing += volume(box);
  return volume(all) - missing;
}

Status Version::verify() const {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    for (const Piece& piece : pieces_[i]) {
      const uint64_t found = checksum64(piece.elements);
      if (found != piece.checksum)
        return invalid(
            fmt::format("step {}: tensor '{}', piece {}: checksum {:016x} instead of {:016x}",
                        step_, tensors_[i].name, to_string(piece.box), found, piece.checksum));
    }
  }
  return {};
}

// ---- The vault --------------------------------------------------------------------------------

Vault::Vault(VaultOptions options) : options_(options) {
  PLIANT_CHECK(options_.versions_max > 0, "a vault keeps at least one version");
}

Status Vault::check(const VaultTicket& ticket) const {
  if (ticket.step == kNewest)
    return invalid(fmt::format("{} is no step: it stands for the newest", kNewest));
  if (ticket.writers == 0 || ticket.writers > kWritersMax || ticket.writer >= ticket.writers)
    return invalid(fmt::format("there is no writer {} among {}", ticket.writer, ticket.writers));
  const auto known = unfinished_.find(ticket.step);
  if (known == unfinished_.end()) {
    if (unfinished_.size() < kUnfinishedMax) return {};
    return Error{
        Code::kOverloaded,
        fmt::format("{} versions are unfinished; wait for one before the next", unfinished_.size()),
        {},
        {}};
  }
  const Unfinished& other = known->second;
  if (ticket.epoch < other.epoch)
    return Error{Code::kStaleEpoch,
                 fmt::format("step {}: the members of epoch {} write this version, not those of {}",
                             ticket.step, other.epoch, ticket.epoch),
                 {},
                 {}};
  if (ticket.epoch > other.epoch) return {};
  if (ticket.writers != other.writers)
    return invalid(fmt::format("step {}: one writer says that they are {}, another {}", ticket.step,
                               other.writers, ticket.writers));
  if (other.parts.contains(ticket.writer))
    return invalid(
        fmt::format("step {}: writer {} has handed over its part", ticket.step, ticket.writer));
  return {};
}

// Whoever reads one of those that go keeps its memory for that long; it is not counted any more.
Status Vault::make_room(uint64_t bytes) {
  if (options_.bytes_max == 0) return {};
  while (complete_.size() > 1 && memory_bytes() + bytes > options_.bytes_max) complete_.pop_front();
  if (memory_bytes() + bytes <= options_.bytes_max) return {};
  return Error{
      Code::kOverloaded,
      fmt::format("{} more do not fit beside the newest version: the store holds {} of at most {}; "
                  "it needs room for two versions",
                  human_bytes(bytes), human_bytes(memory_bytes()), human_bytes(options_.bytes_max)),
      {},
      {}};
}

Status Vault::add(const VaultTicket& ticket, VaultPart part) {
  PLIANT_TRY(check(ticket));
  const auto known = unfinished_.find(ticket.step);
  if (known != unfinished_.end() && ticket.epoch > known->second.epoch) unfinished_.erase(known);
  PLIANT_TRY(make_room(part.memory->bytes().size()));
  Unfinished& version = unfinished_[ticket.step];
  version.epoch = ticket.epoch;
  version.writers = ticket.writers;
  version.parts.emplace(ticket.writer, std::move(part));
  if (version.parts.size() < version.writers) return {};
  return complete(ticket.step);
}

Status Vault::complete(uint64_t step) {
  auto done = unfinished_.extract(step);
  std::vector<VaultPart> parts;
  for (auto& [writer, part] : done.mapped().parts) parts.push_back(std::move(part));
  auto version = Version::make(step, done.mapped().epoch, std::move(parts));
  if (!version) return version.error();
  std::erase_if(complete_, [&](const Version::Shared& old) { return old->step() == step; });
  complete_.push_back(std::move(*version));
  while (complete_.size() > options_.versions_max) complete_.pop_front();
  return {};
}

void Vault::withdraw(const VaultTicket& ticket) {
  const auto at = unfinished_.find(ticket.step);
  if (at == unfinished_.end() || at->second.epoch != ticket.epoch) return;
  at->second.parts.erase(ticket.writer);
  if (at->second.parts.empty()) unfinished_.erase(at);
}

Vault::Standing Vault::standing(const VaultTicket& ticket) const {
  const auto at = unfinished_.find(ticket.step);
  if (at != unfinished_.end() && at->second.epoch == ticket.epoch &&
      at->second.parts.contains(ticket.writer))
    return Standing::kUnfinished;
  const bool complete = std::ranges::any_of(complete_, [&](const Version::Shared& version) {
    return version->step() == ticket.step && version->epoch() == ticket.epoch;
  });
  return complete ? Standing::kComplete : Standing::kGone;
}

Status Vault::add_copy(uint32_t host, Version::Shared copy) {
  if (!copies_.contains(host) && copies_.size() >= kCopiedHostsMax)
    return Error{Code::kOverloaded,
                 fmt::format("there are copies of {} hosts; more are not kept", copies_.size()),
                 {},
                 {}};
  PLIANT_TRY(make_room(copy->memory_bytes()));
  std::list<Version::Shared>& copies = copies_[host];
  std::erase_if(copies, [&](const Version::Shared& old) { return old->step() == copy->step(); });
  copies.push_back(std::move(copy));
  while (copies.size() > options_.versions_max) copies.pop_front();
  return {};
}

Status Vault::add_outline(uint32_t host, Outline outline) {
  if (!outlines_.contains(host) && outlines_.size() >= kOutlinedHostsMax)
    return Error{Code::kOverloaded,
                 fmt::format("outlines of {} hosts are kept, and no more", outlines_.size()),
                 {},
                 {}};
  std::list<Outline>& outlines = outlines_[host];
  std::erase_if(outlines, [&](const Outline& old) { return old.step == outline.step; });
  outlines.push_back(std::move(outline));
  while (outlines.size() > options_.versions_max) outlines.pop_front();
  return {};
}

std::map<uint32_t, const Vault::Outline*> Vault::outlines(uint64_t step) const {
  std::map<uint32_t, const Outline*> found;
  for (const auto& [host, outlines] : outlines_)
    for (const Outline& outline : outlines)
      if (outline.step == step) found.emplace(host, &outline);
  return found;
}

// What other hosts have of the same version comes after its own: where they overlap, its own count.
Version::Shared Vault::with_copies(const Version::Shared& version) const {
  std::vector<VaultPart> parts = version->parts();
  for (const auto& [host, copies] : copies_)
    for (const Version::Shared& copy : copies)
      if (copy != version && copy->step() == version->step() && copy->epoch() == version->epoch())
        parts.insert(parts.end(), copy->parts().begin(), copy->parts().end());
  if (parts.size() == version->parts().size()) return version;
  auto merged = Version::make(version->step(), version->epoch(), std::move(parts));
  // Hosts that disagree about a tensor have no common version.
  return merged ? *merged : version;
}

std::vector<Version::Shared> Vault::versions() const {
  std::vector<Version::Shared> all;
  const auto known = [&](uint64_t step) {
    const auto same = [&](const Version::Shared& version) { return version->step() == step; };
    return std::ranges::any_of(complete_, same) || std::ranges::any_of(all, same);
  };
  for (const auto& [host, copies] : copies_)
    for (const Version::Shared& copy : copies)
      if (!known(copy->step())) all.push_back(with_copies(copy));
  for (const Version::Shared& version : complete_) all.push_back(with_copies(version));
  return all;
}

Result<Version::Shared> Vault::find(uint64_t step) const {
  const std::vector<Version::Shared> all = versions();
  if (all.empty()) return invalid("the store holds no complete version yet");
  if (step == kNewest) return all.back();
  std::vector<uint64_t> steps;
  for (const Version::Shared& version : all) {
    if (version->step() == step) return version;
    steps.push_back(version->step());
  }
  return invalid(
      fmt::format("the store holds no step {}; it has {}", step, fmt::join(steps, ", ")));
}

Status Vault::remove(uint64_t step) {
  const auto version = find(step);
  if (!version) return version.error();
  const auto same = [&](const Version::Shared& old) { return old->step() == (*version)->step(); };
  std::erase_if(complete_, same);
  for (auto& [host, copies] : copies_) std::erase_if(copies, same);
  return {};
}

uint64_t Vault::memory_bytes() const {
  uint64_t bytes = 0;
  for (const Version::Shared& version : complete_) bytes += version->memory_bytes();
  for (const auto& [host, copies] : copies_)
    for (const Version::Shared& copy : copies) bytes += copy->memory_bytes();
  for (const auto& [step, version] : unfinished_)
    for (const auto& [writer, part] : version.parts) bytes += part.memory->bytes().size();
  return bytes;
}

}  // namespace pliant::store
