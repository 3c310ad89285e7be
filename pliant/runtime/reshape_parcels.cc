#include "pliant/runtime/reshape_parcels.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace pliant {
namespace {

constexpr size_t kInFlight = 4;

// One place of the window: a name that is used again when its message has arrived, and memory for
// what is not contiguous.
struct Lane {
  std::string name;
  std::vector<std::byte> staging;
  const Parcel* parcel = nullptr;
  Work work;
};

// Runs parcels through a window. Sides differ in what is done before and after.
template <typename Begin, typename Finish>
Status run_window(std::span<const Parcel> parcels, Begin begin, Finish finish) {
  std::vector<Lane> lanes(kInFlight);
  std::map<Rank, size_t> numbers;  // of the next parcel of each peer
  Status first;
  const auto settle = [&](Lane& lane) {
    if (lane.parcel == nullptr) return;
    const Status status = lane.work.wait();
    if (!status.ok() && first.ok()) first = status.error();
    if (status.ok()) finish(lane);
    lane.parcel = nullptr;
  };
  for (size_t i = 0; i < parcels.size() && first.ok(); ++i) {
    Lane& lane = lanes[i % kInFlight];
    settle(lane);
    if (!first.ok()) break;
    lane.parcel = &parcels[i];
    begin(lane, numbers[parcels[i].peer]++ % kInFlight);
  }
  // Their memory is ours again only when all have ended.
  for (size_t i = 0; i < kInFlight; ++i) settle(lanes[(parcels.size() + i) % kInFlight]);
  return first;
}

std::span<std::byte> stage(Lane& lane) {
  lane.staging.resize(std::max(lane.staging.size(), lane.parcel->bytes()));
  return {lane.staging.data(), lane.parcel->bytes()};
}

Operation message(const Lane& lane, Collective collective) {
  Operation operation;
  operation.collective = collective;
  operation.name = lane.name;
  operation.count = lane.parcel->bytes();
  operation.dtype = DType::kU8;
  operation.root = lane.parcel->peer;
  return operation;
}

std::string lane_name(Rank from, Rank to, size_t lane) {
  return fmt::format("pliant/reshape/{}>{}/{}", from, to, lane);
}

}  // namespace

void sort_outgoing(std::vector<Parcel>& parcels, Rank self, Rank members) {
  std::ranges::stable_sort(
      parcels, {}, [&](const Parcel& parcel) { return (parcel.peer - self + members) % members; });
}

void sort_incoming(std::vector<Parcel>& parcels, Rank self, Rank members) {
  std::ranges::stable_sort(
      parcels, {}, [&](const Parcel& parcel) { return (self - parcel.peer + members) % members; });
}

Status send_parcels(Session& session, std::span<const Parcel> parcels) {
  const auto begin = [&](Lane& lane, size_t number) {
    const Parcel& parcel = *lane.parcel;
    lane.name = lane_name(session.rank(), parcel.peer, number);
    Operation operation = message(lane, Collective::kSend);
    operation.input = parcel.from.data;
    if (!is_packed(parcel.slice, parcel.from.strides)) {
      const std::span<std::byte> packed = stage(lane);
      copy_box(parcel.slice, parcel.element_bytes, {packed.data(), packed_strides(parcel.slice)},
               parcel.from);
      operation.input = packed.data();
    }
    lane.work = session.start(operation);
  };
  return run_window(parcels, begin, [](Lane&) {});
}

Status receive_parcels(Session& session, std::span<const Parcel> parcels, std::span<uint64_t> sums,
                       std::atomic<uint64_t>& done_bytes) {
  const auto begin = [&](Lane& lane, size_t number) {
    const Parcel& parcel = *lane.parcel;
    lane.name = lane_name(parcel.peer, session.rank(), number);
    Operation operation = message(lane, Collective::kReceive);
    operation.output =
        is_packed(parcel.slice, parcel.to.strides) ? parcel.to.data : stage(lane).data();
    lane.work = session.start(operation);
  };
  const auto finish = [&](Lane& lane) {
    const Parcel& parcel = *lane.parcel;
    if (is_packed(parcel.slice, parcel.to.strides)) {
      sums[parcel.sum] = checksum64({parcel.to.data, parcel.bytes()});
    } else {
      const tensor::BoxSource packed{lane.staging.data(), packed_strides(parcel.slice)};
      sums[parcel.sum] = copy_and_sum(parcel.slice, parcel.element_bytes, parcel.to, packed,
                                      RunningChecksum::Store::kCached);
    }
    done_bytes.fetch_add(parcel.bytes(), std::memory_order_relaxed);
  };
  return run_window(parcels, begin, finish);
}

}  // namespace pliant
