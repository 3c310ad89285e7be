// A roster as bytes, for the coordinator's log, and back.
#include <csignal>
#include <unordered_map>

#include "pliant/membership/roster.h"

namespace pliant {
namespace {

constexpr uint32_t kSnapshotVersion = 1;
constexpr size_t kViewBytesMax = size_t{64} << 20;
constexpr size_t kWorkerBytes = 8 + 4 + 4 + 5 * 1 + 4;

}  // namespace

std::vector<std::byte> Roster::snapshot() const {
  Writer writer;
  writer.put(kSnapshotVersion);
  const std::vector<std::byte> view = encode(view_);
  writer.put_string({reinterpret_cast<const char*>(view.data()), view.size()});
  writer.put(target_);
  writer.put(vacancies_);
  writer.put(retired_);
  writer.put(static_cast<int32_t>(restarts_left_));
  writer.put(next_number_);
  writer.put(step_);
  writer.put(static_cast<uint32_t>(schedule_next_));
  writer.put(static_cast<uint8_t>(ended_well_ ? 1 : 0));
  places_.save(writer);
  writer.put(static_cast<uint32_t>(workers_.size()));
  for (const auto& [peer, worker] : workers_) {
    writer.put(peer.packed());
    writer.put(worker.number);
    writer.put(worker.pid);
    writer.put(static_cast<uint8_t>(worker.standing));
    writer.put(static_cast<uint8_t>(worker.left ? 1 : 0));
    writer.put(static_cast<uint8_t>(worker.draining ? 1 : 0));
    writer.put(static_cast<uint8_t>(worker.seasoned ? 1 : 0));
    writer.put(static_cast<uint8_t>(worker.accounted ? 1 : 0));
    writer.put(worker.member_epoch);
  }
  return writer.bytes();
}

Result<Roster> Roster::restore(RosterOptions options, Bytes bytes, Instant now) {
  const Error broken = invalid("the coordinator's log holds a membership that cannot be read");
  Reader reader(bytes);
  if (reader.take<uint32_t>() != kSnapshotVersion) return broken;
  Roster roster(std::move(options), now);
  const std::string view_text = reader.take_string(kViewBytesMax);
  auto view = decode_view(std::as_bytes(std::span(view_text)));
  if (!view) return broken;
  roster.view_ = std::move(*view);
  std::unordered_map<PeerId, Rank> ranks;
  for (Rank rank = 0; rank < roster.view_.size(); ++rank)
    ranks.emplace(roster.view_.at(rank).id, rank);
  roster.target_ = reader.take<uint32_t>();
  roster.vacancies_ = reader.take<uint32_t>();
  roster.retired_ = reader.take<uint32_t>();
  roster.restarts_left_ = reader.take<int32_t>();
  roster.next_number_ = reader.take<uint32_t>();
  roster.step_ = reader.take<uint64_t>();
  roster.schedule_next_ = reader.take<uint32_t>();
  roster.ended_well_ = reader.take<uint8_t>() != 0;
  if (!roster.places_.load(reader)) return broken;
  const auto count = reader.take<uint32_t>();
  if (!reader.ok() || count > reader.left() / kWorkerBytes) return broken;
  for (uint32_t i = 0; i < count; ++i) {
    const PeerId peer = PeerId::unpack(reader.take<uint64_t>());
    Worker& worker = roster.workers_[peer];
    worker.number = reader.take<uint32_t>();
    worker.pid = reader.take<int32_t>();
    const auto standing = reader.take<uint8_t>();
    worker.left = reader.take<uint8_t>() != 0;
    worker.draining = reader.take<uint8_t>() != 0;
    worker.seasoned = reader.take<uint8_t>() != 0;
    worker.accounted = reader.take<uint8_t>() != 0;
    worker.member_epoch = reader.take<uint32_t>();
    if (standing > static_cast<uint8_t>(Standing::kLost)) return broken;
    if (!roster.places_.incarnation(peer.host, peer.slot)) return broken;
    worker.standing = static_cast<Standing>(standing);
    roster.places_.occupy(peer);
    worker.heard = now;
    const auto rank = ranks.find(peer);
    if (rank != ranks.end()) worker.rank = rank->second;
    if (worker.standing == Standing::kMember) {
      if (worker.rank < 0) return broken;
      worker.member = roster.view_.at(worker.rank);
      worker.member_since = now;
      worker.returning = true;
    } else if (worker.standing == Standing::kCandidate) {
      worker.standing = Standing::kOutside;  // it joins again
    } else if (worker.standing == Standing::kLost || worker.standing == Standing::kLeaving) {
      worker.due = now + roster.options_.evict_after;
      worker.next_signal = SIGKILL;
      worker.lost_before_end = !roster.ended_well_;
    }
    if (worker.draining) worker.drain_reason = "leaves: it is drained";
  }
  if (!reader.finished()) return broken;
  roster.started_ = true;
  return roster;
}

}  // namespace pliant
