// What outlives a view: channels and results of former ones, which peers may still use, and results
// of leaders that have departed, which their successors use.
#include <algorithm>
#include <iterator>
#include <utility>

#include "pliant/base/contains.h"
#include "pliant/collective/host.h"

namespace pliant {

void HostExchange::retire(std::span<HostBinding* const> bindings, Epoch epoch,
                          const FormerPeers& peers) {
  Quarantine batch;
  batch.epoch = epoch;
  batch.at_large.assign(peers.at_large.begin(), peers.at_large.end());
  batch.members.assign(peers.members.begin(), peers.members.end());
  // Whoever is neither at large nor a member has ended.
  for (Quarantine& older : quarantines_)
    std::erase_if(older.members, [&](PeerId peer) {
      return !contains(batch.members, peer) && !contains(batch.at_large, peer);
    });
  // What the members had in the view before the last is not what they have now, if they got on.
  if (met_results_.exchange(false, std::memory_order_relaxed))
    drop_results([&](const ResultMemory& memory) { return contains(members_, memory.owner); });
  members_ = batch.members;
  for (HostBinding* binding : bindings) {
    if (binding->channel >= 0) {
      const auto index = static_cast<size_t>(binding->channel);
      if (may_be_in_use(*binding, owners_[index].key)) {
        quarantined_[index] = true;
        batch.channels.push_back(index);
      }
      control().keys[index].store(0, std::memory_order_release);
      owners_[index] = {};
    }
    retire_result(batch, *binding);
    for (const std::span<std::byte> memory : binding->retired)
      batch.results.push_back({.bytes = memory});
    if (!binding->own_staging.empty()) batch.staging.push_back(binding->own_staging);
  }
  // Only this process writes to its staging, and not before all members have met in the new view.
  for (const Waiting& waiting : waiting_staging_) idle_staging_.push_back(waiting.memory);
  waiting_staging_.clear();
  quarantines_.push_back(std::move(batch));
  end_quarantines();
}

void HostExchange::retire_result(Quarantine& batch, HostBinding& binding) {
  if (!binding.next_result.bytes.empty()) batch.results.push_back(std::move(binding.next_result));
  ResultMemory& result = binding.result;
  if (result.bytes.empty()) return;
  if (result.owner != PeerId{}) {
    for (const HostPeer& peer : binding.peers) result.seen_by.push_back(peer.id);
    // It may be known from an older view, of another name.
    drop_results(
        [&](const ResultMemory& known) { return known.bytes.data() == result.bytes.data(); });
  }
  batch.results.push_back(std::move(result));
}

template <typename Which>
void HostExchange::drop_results(Which which) {
  std::erase_if(idle_results_, which);
  for (Quarantine& batch : quarantines_) std::erase_if(batch.results, which);
}

void HostExchange::enter(Epoch epoch) {
  control().epoch.store(number(epoch), std::memory_order_release);
}

void HostExchange::end_quarantines() {
  std::erase_if(quarantines_, [&](Quarantine& batch) {
    std::erase_if(batch.members, [&](PeerId peer) {
      Segment* const segment = memory_.segment_of(peer);
      return segment == nullptr ||
             ControlArea::of(segment->control()).epoch.load(std::memory_order_acquire) >=
                 number(batch.epoch);
    });
    if (!batch.at_large.empty() || !batch.members.empty()) return false;
    for (const size_t index : batch.channels) quarantined_[index] = false;
    std::move(batch.results.begin(), batch.results.end(), std::back_inserter(idle_results_));
    for (const std::span<std::byte> memory : batch.staging) own().release(memory.data());
    return true;
  });
}

void HostExchange::peer_gone(PeerId peer) {
  for (Quarantine& batch : quarantines_) {
    std::erase(batch.at_large, peer);
    std::erase(batch.members, peer);
  }
  end_quarantines();
}

// ---- Results ----------------------------------------------------------------------------------

Result<ResultMemory> HostExchange::take_result(size_t bytes, const HostBinding& binding,
                                               bool may_inherit) {
  end_quarantines();
  const auto inheritable = [&](const ResultMemory& memory) {
    return may_inherit && !contains(members_, memory.owner) &&
           std::all_of(binding.peers.begin(), binding.peers.end(),
                       [&](const HostPeer& peer) { return contains(memory.seen_by, peer.id); });
  };
  // The smallest that will do; one's own before another's.
  const auto cost = [](const ResultMemory& memory) {
    return std::pair(memory.bytes.size(), memory.owner != PeerId{});
  };
  auto best = idle_results_.end();
  for (auto at = idle_results_.begin(); at != idle_results_.end(); ++at) {
    if (at->bytes.size() < bytes) continue;
    if (at->owner != PeerId{} && !inheritable(*at)) continue;
    if (best == idle_results_.end() || cost(*at) < cost(*best)) best = at;
  }
  if (best != idle_results_.end()) {
    ResultMemory memory = std::move(*best);
    idle_results_.erase(best);
    return memory;
  }
  auto memory = own().allocate(bytes);
  if (!memory) return memory.error();
  return ResultMemory{.bytes = *memory};
}

Result<ResultMemory> HostExchange::fill_result(size_t bytes) {
  auto memory = own().allocate(bytes);
  if (!memory) return memory.error();
  const auto filled = std::make_shared<std::atomic<bool>>(false);
  const auto fill = [segment = &own(), memory = *memory, wanted = std::weak_ptr(filled)] {
    constexpr size_t kSlice = size_t{4} << 20;
    for (size_t done = 0; done < memory.size() && !wanted.expired(); done += kSlice)
      segment->fill(memory.subspan(done, std::min(kSlice, memory.size() - done)));
    if (const auto told = wanted.lock()) told->store(true, std::memory_order_release);
  };
  if (!memory_.aside || !memory_.aside(fill)) filled->store(true);
  return ResultMemory{.bytes = *memory, .filled = filled};
}

std::byte* HostExchange::find_result(HostBinding& binding, size_t bytes, const Post& leader) {
  const bool inherited = leader.result_owner != 0;
  const PeerId owner = inherited ? PeerId::unpack(leader.result_owner) : binding.peers[0].id;
  // Members drop the segment of a departed peer when no call uses it, which all know alike.
  Segment* const segment = inherited ? memory_.segment_of(owner) : binding.peers[0].segment;
  PLIANT_CHECK(segment != nullptr, "a leader uses memory that not all members have");
  std::byte* const data = segment->at(leader.result);
  binding.inherited_from.store(leader.result_owner, std::memory_order_relaxed);
  if (!met_results_.load(std::memory_order_relaxed))
    met_results_.store(true, std::memory_order_relaxed);
  if (binding.self != 0 &&
      (binding.result.bytes.data() != data || binding.result.bytes.size() < bytes))
    binding.result = {.owner = owner, .bytes = {data, bytes}};
  return data;
}

std::optional<uint64_t> HostExchange::offset_of(const ResultMemory& memory) const {
  const Segment* const segment =
      memory.owner == PeerId{} ? memory_.own : memory_.segment_of(memory.owner);
  if (segment == nullptr) return std::nullopt;
  return segment->offset_of(memory.bytes.data());
}

void HostExchange::forget_departed() {
  drop_results([](const ResultMemory& memory) { return memory.owner != PeerId{}; });
}

}  // namespace pliant
