#include "pliant/runtime/reshape_work.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "pliant/base/check.h"

namespace pliant {
namespace {

using tensor::Box;
using tensor::BoxSource;
using tensor::BoxTarget;
using tensor::Move;
using tensor::Piece;
using tensor::Slices;

// A slice is what one thread copies, one message carries and one checksum is of: large enough for a
// link, small enough for a few to be in flight.
constexpr size_t kSliceBytes = size_t{4} << 20;
// What outgrows the caches is better written around them.
constexpr uint64_t kStreamBytesMin = uint64_t{32} << 20;
constexpr auto kTellEvery = std::chrono::milliseconds(50);

}  // namespace

ReshapeWork::ReshapeWork(const ReshapeScene& scene, TensorChoice choice)
    : scene_(scene), choice_(choice) {
  for (const tensor::TensorInfo& tensor : scene.plan.collection->tensors())
    old_tensor_.push_back(scene.from.collection().find(tensor.name).value());
  count_gifts();
  if (scene.new_rank >= 0)
    for (const Move& move : scene.plan.moves_to(scene.new_rank))
      if (choice.contains(move.tensor)) add_move(move);
  if (scene.old_rank >= 0)
    for (const Move& move : scene.plan.moves)
      if (move.from == scene.old_rank && choice.contains(move.tensor) &&
          !scene.plan.is_in_place(move))
        add_gift(move);
  const Rank members = scene.session.size();
  sort_outgoing(outgoing_, scene.session.rank(), members);
  sort_incoming(incoming_, scene.session.rank(), members);
  if (bytes_.to_move() >= kStreamBytesMin) store_ = RunningChecksum::Store::kStreamed;
}

// Equal on both sides of a move.
Slices ReshapeWork::slices_of(const Move& move) const {
  return {box_of(move), kSliceBytes / element_bytes(move)};
}

size_t ReshapeWork::element_bytes(const Move& move) const {
  return size_of((*scene_.plan.collection)[move.tensor].dtype);
}

const Piece& ReshapeWork::piece_of(const tensor::Holding& holding, size_t tensor,
                                   const Box& box) const {
  const Piece* const piece = holding.find(tensor, box);
  PLIANT_CHECK(piece != nullptr, "a move is of one piece on both sides");
  return *piece;
}

// A box that several members take from one is summed once. Every member counts alike.
void ReshapeWork::count_gifts() {
  sum_counts_.assign(static_cast<size_t>(scene_.session.size()), 0);
  for (const Move& move : scene_.plan.moves) {
    if (scene_.plan.is_in_place(move) || !choice_.contains(move.tensor)) continue;
    size_t& count = sum_counts_[static_cast<size_t>(giver(move))];
    if (!gifts_.try_emplace({move.from, move.tensor, move.box}, count).second) continue;
    count += slices_of(move).size();
  }
  own_sums_.resize(sum_counts_[static_cast<size_t>(scene_.session.rank())]);
}

void ReshapeWork::add_move(const Move& move) {
  const Piece& target = piece_of(*scene_.target, move.tensor, box_of(move));
  const uint64_t bytes = scene_.plan.bytes_of(move);
  const size_t element = element_bytes(move);
  const bool in_place = scene_.plan.is_in_place(move);
  if (scene_.is_kept[target.buffer]) {
    PLIANT_CHECK(in_place, "what is kept comes from here");
    bytes_.kept += bytes;
    return;
  }
  const bool readable = in_place || scene_.is_reachable(giver(move), taker(move));
  (in_place ? bytes_.in_place : readable ? bytes_.inside : bytes_.messages) += bytes;
  const Slices slices = slices_of(move);
  if (!in_place) {
    arrivals_.push_back({&move, arrived_.size(), slices.size()});
    arrived_.resize(arrived_.size() + slices.size());
  }
  std::byte* const to = scene_.target_buffers[target.buffer];
  const ReadableMemory* const memory = readable ? &scene_.sources.at(move.from) : nullptr;
  const Piece* const source =
      readable ? &piece_of(memory->holding, old_tensor_[move.tensor], box_of(move)) : nullptr;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Box slice = slices[i];
    const BoxTarget place = part_of(target, to, slice, element);
    const size_t sum = in_place ? 0 : arrivals_.back().first + i;
    if (!readable) {
      incoming_.push_back(
          {.peer = giver(move), .slice = slice, .element_bytes = element, .to = place, .sum = sum});
      continue;
    }
    tasks_.push_back({.kind = in_place ? Task::Kind::kCopy : Task::Kind::kArrive,
                      .slice = slice,
                      .element_bytes = element,
                      .to = place,
                      .from = part_of(*source, memory->buffers[source->buffer], slice, element),
                      .sum = sum});
  }
}

void ReshapeWork::add_gift(const Move& move) {
  const ReadableMemory& own = scene_.sources.at(scene_.old_rank);
  const Piece& source = piece_of(own.holding, old_tensor_[move.tensor], box_of(move));
  const std::byte* const from = own.buffers[source.buffer];
  const size_t element = element_bytes(move);
  const Slices slices = slices_of(move);
  const bool is_sent = !scene_.is_reachable(giver(move), taker(move));
  bytes_.given += scene_.plan.bytes_of(move);
  // The first who takes it has it summed; the key stays, so that the sums can be found.
  auto& summed = summed_[{move.from, move.tensor, move.box}];
  const size_t first = gifts_.at({move.from, move.tensor, move.box});
  for (size_t i = 0; i < slices.size(); ++i) {
    const Box slice = slices[i];
    const BoxSource place = part_of(source, from, slice, element);
    if (is_sent)
      outgoing_.push_back(
          {.peer = taker(move), .slice = slice, .element_bytes = element, .from = place});
    if (!summed)
      tasks_.push_back({.kind = Task::Kind::kGive,
                        .slice = slice,
                        .element_bytes = element,
                        .from = place,
                        .sum = first + i});
  }
  summed = true;
}

// ---- Doing it ---------------------------------------------------------------------------------

void ReshapeWork::do_task(const Task& task) {
  switch (task.kind) {
    case Task::Kind::kCopy:
      // The sum is not needed, but its copy can go around the caches.
      (void)copy_and_sum(task.slice, task.element_bytes, task.to, task.from, store_);
      break;
    case Task::Kind::kArrive:
      arrived_[task.sum] = copy_and_sum(task.slice, task.element_bytes, task.to, task.from, store_);
      break;
    case Task::Kind::kGive:
      own_sums_[task.sum] = sum_box(task.slice, task.element_bytes, task.from);
      return;
  }
  done_bytes_.fetch_add(volume(task.slice) * task.element_bytes, std::memory_order_relaxed);
}

void ReshapeWork::do_tasks(const Progress& on_progress) {
  Instant told = now();
  while (true) {
    const size_t index = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (index >= tasks_.size()) return;
    do_task(tasks_[index]);
    if (!on_progress || now() - told < kTellEvery) continue;
    told = now();
    tell(on_progress);
  }
}

void ReshapeWork::tell(const Progress& on_progress) const {
  if (on_progress) on_progress(done_bytes_.load(std::memory_order_relaxed), bytes_.to_move());
}

Status ReshapeWork::run(size_t threads, const Progress& on_progress) {
  struct Ending {
    std::mutex mutex;
    std::condition_variable changed;
    size_t running = 0;
    Status first;  // error
  } ending;
  std::vector<std::thread> others;
  const auto start = [&](auto work) {
    {
      const std::lock_guard guard(ending.mutex);
      ++ending.running;
    }
    others.emplace_back([&ending, work] {
      Status status = work();
      const std::lock_guard guard(ending.mutex);
      if (!status.ok() && ending.first.ok()) ending.first = std::move(status);
      --ending.running;
      ending.changed.notify_all();
    });
  };
  if (!outgoing_.empty()) start([this] { return send_parcels(scene_.session, outgoing_); });
  if (!incoming_.empty())
    start([this] { return receive_parcels(scene_.session, incoming_, arrived_, done_bytes_); });
  for (size_t i = 1; i < threads && i < tasks_.size(); ++i)
    start([this]() -> Status {
      do_tasks({});
      return {};
    });
  do_tasks(on_progress);
  {
    std::unique_lock lock(ending.mutex);
    while (!ending.changed.wait_for(lock, kTellEvery, [&] { return ending.running == 0; })) {
      lock.unlock();
      tell(on_progress);
      lock.lock();
    }
  }
  for (std::thread& thread : others) thread.join();
  if (ending.first.ok()) tell(on_progress);
  return std::move(ending.first);
}

Status ReshapeWork::compare(std::span<const uint64_t> all_sums) const {
  std::vector<size_t> first(sum_counts_.size());
  std::exclusive_scan(sum_counts_.begin(), sum_counts_.end(), first.begin(), size_t{0});
  for (const Arrival& arrival : arrivals_) {
    const Move& move = *arrival.move;
    const size_t given =
        first[static_cast<size_t>(giver(move))] + gifts_.at({move.from, move.tensor, move.box});
    for (size_t i = 0; i < arrival.count; ++i) {
      if (arrived_[arrival.first + i] == all_sums[given + i]) continue;
      const View& view = scene_.session.view();
      return invalid(fmt::format(
          "'{}' {} arrived damaged: {} gave it, {} took it, and the checksums differ; what it was "
          "copied from is intact, try again",
          (*scene_.plan.collection)[move.tensor].name, to_string(slices_of(move)[i]),
          view.describe(view.at(giver(move)).id), view.describe(view.at(taker(move)).id)));
    }
  }
  return {};
}

}  // namespace pliant
