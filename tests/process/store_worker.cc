// A worker for the tests of the store. Each line that it prints is a JSON object.
//
//   store_worker hold STEP BYTES FILE   snapshots its share of a tensor, waits until FILE exists,
//                                       then restores the newest version and checks all of it
//   store_worker spread STEP BYTES      snapshots its share of a tensor, and waits until all of it
//                                       can be restored on its own host
//   store_worker outlive MEMBERS COPIES STEP BYTES FILE
//                                       snapshots its row of a tensor and a tensor of its own, and
//                                       says so once other hosts have them (or, with one copy, know
//                                       of them); when FILE exists, reads all of the version from
//                                       whichever hosts have it. One that replaces another only
//                                       reads, the newest. All wait to be killed
//   store_worker replace                the first of its slot snapshots its registered state and
//                                       waits to be killed; the next restores it, and ends
//   store_worker partial                rank 0 snapshots, nobody else does; all wait to be killed
//   store_worker again STEP             restores its registered state if there is any, and
//                                       snapshots it as STEP
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "pliant/base/checksum.h"
#include "pliant/runtime/job_report.h"
#include "pliant/runtime/session.h"

namespace {

using pliant::Session;

constexpr size_t kStateBytes = 1 << 20;
constexpr pliant::Duration kPatience = std::chrono::seconds(50);

void say(const std::string& fields) { std::cout << "{" << fields << "}" << std::endl; }

// A JSON string; what it is used for has no quotes in it.
std::string quoted(const std::string& text) { return "\"" + text + "\""; }

int fail(const pliant::Error& error) {
  std::string text = error.message;
  for (char& c : text)
    if (c == '"' || c == '\\') c = '\'';
  say(fmt::format("\"error\":\"{}\",\"code\":\"{}\"", text, to_string(error.code)));
  return 1;
}

void wait_for_file(const char* path) {
  while (access(path, F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

std::byte expected_at(uint64_t step, uint64_t place) {
  return static_cast<std::byte>((place * 31 + place / 251 + step) & 0xff);
}

// One row of a tensor, of which each of `members` has one.
int keep_row(Session& session, uint64_t step, uint64_t bytes, uint64_t members, uint64_t self) {
  std::vector<std::byte> mine(bytes);
  for (uint64_t i = 0; i < bytes; ++i) mine[i] = expected_at(step, self * bytes + i);
  pliant::SnapshotPiece piece;
  piece.tensor = {"layer/w", pliant::DType::kU8, {members, bytes}};
  piece.box = pliant::tensor::whole(piece.tensor.shape);
  piece.box.begin[0] = self;
  piece.box.end[0] = self + 1;
  piece.elements = mine;
  const auto snapshot = session.snapshot(step, std::span(&piece, 1));
  if (!snapshot) return fail(snapshot.error());
  if (const pliant::Status kept = snapshot->wait(); !kept.ok()) return fail(kept.error());
  say(fmt::format("\"kept\":{},\"rank\":{},\"pid\":{},\"store\":{},\"token\":{}", step,
                  session.rank(), getpid(), quoted(std::getenv("PLIANT_STORE")),
                  quoted(std::getenv("PLIANT_TOKEN"))));
  return 0;
}

int check_rows(Session& session, uint64_t bytes, uint64_t members) {
  const auto version = session.restore(Session::kNewest);
  if (!version) return fail(version.error());
  std::vector<std::byte> all(members * bytes);
  const auto number = (*version)->find("layer/w");
  if (!number) return fail(number.error());
  if (const auto read = (*version)->read(*number, pliant::tensor::whole({{members, bytes}}), all);
      !read.ok())
    return fail(read.error());
  bool sound = (*version)->verify().ok();
  for (uint64_t i = 0; i < all.size(); ++i)
    sound = sound && all[i] == expected_at((*version)->step(), i);
  say(fmt::format("\"sound\":{},\"step\":{}", sound, (*version)->step()));
  return sound ? 0 : 1;
}

int hold(Session& session, uint64_t step, uint64_t bytes, const char* file) {
  const auto members = static_cast<uint64_t>(session.local_size());
  const auto self = static_cast<uint64_t>(session.local_rank());
  if (keep_row(session, step, bytes, members, self) != 0) return 1;
  wait_for_file(file);
  return check_rows(session, bytes, members);
}

int spread(Session& session, uint64_t step, uint64_t bytes) {
  const auto members = static_cast<uint64_t>(session.size());
  if (keep_row(session, step, bytes, members, static_cast<uint64_t>(session.rank())) != 0) return 1;
  const pliant::Instant give_up = pliant::now() + kPatience;
  while (pliant::now() < give_up) {
    const auto version = session.restore(step);
    if (!version) return fail(version.error());
    const auto covered = (*version)->covered(0);
    if (covered && *covered == members * bytes) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const int sound = check_rows(session, bytes, members);
  // The others' copies come out of this host's store.
  return session.barrier().ok() ? sound : 1;
}

// ---- Of a host that is lost -------------------------------------------------------------------

constexpr uint64_t kOwnBytes = 1000;

std::string own_tensor(uint64_t rank) { return "only/" + std::to_string(rank); }

pliant::StorePlace own_place() {
  const auto self = pliant::parse_peer_id(std::getenv("PLIANT_PEER"));
  return {std::getenv("PLIANT_STORE"), std::getenv("PLIANT_JOB"), std::getenv("PLIANT_TOKEN"),
          self->host};
}

// How many other hosts have this tensor, or know of it.
size_t hosts_with(uint64_t step, const std::string& tensor, bool held) {
  const pliant::Instant deadline = pliant::now() + std::chrono::seconds(20);
  const auto peers = pliant::StoreClient(own_place()).hosts(deadline);
  size_t count = 0;
  for (size_t i = 0; peers && i < peers->size(); ++i) {
    pliant::StorePlace place = own_place();
    place.host = (*peers)[i].host;
    place.endpoint = (*peers)[i].endpoint;
    const auto look = pliant::StoreClient(place).look(step, deadline);
    if (!look) continue;
    count += std::ranges::any_of(look->parts, [&](const pliant::StoreOutline& part) {
      return (part.held || !held) &&
             std::ranges::any_of(part.manifest.tensors,
                                 [&](const auto& info) { return info.name == tensor; });
    });
  }
  return count;
}

int keep_both(Session& session, uint64_t members, uint64_t copies, uint64_t step, uint64_t bytes) {
  const auto self = static_cast<uint64_t>(session.rank());
  std::vector<std::byte> row(bytes);
  for (uint64_t i = 0; i < bytes; ++i) row[i] = expected_at(step, self * bytes + i);
  std::vector<std::byte> own(kOwnBytes);
  for (uint64_t i = 0; i < kOwnBytes; ++i) own[i] = expected_at(step + self, i);
  std::vector<pliant::SnapshotPiece> pieces(2);
  pieces[0].tensor = {"layer/w", pliant::DType::kU8, {members, bytes}};
  pieces[0].box = pliant::tensor::whole(pieces[0].tensor.shape);
  pieces[0].box.begin[0] = self;
  pieces[0].box.end[0] = self + 1;
  pieces[0].elements = row;
  pieces[1].tensor = {own_tensor(self), pliant::DType::kU8, {kOwnBytes}};
  pieces[1].box = pliant::tensor::whole(pieces[1].tensor.shape);
  pieces[1].elements = own;
  const auto snapshot = session.snapshot(step, pieces);
  if (!snapshot) return fail(snapshot.error());
  if (const auto kept = snapshot->wait(); !kept.ok()) return fail(kept.error());
  const auto host_count = pliant::StoreClient(own_place()).hosts(pliant::now() + kPatience);
  const size_t enough = copies > 1 ? copies - 1 : host_count ? host_count->size() : 1;
  while (hosts_with(step, own_tensor(self), copies > 1) < enough)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  say(fmt::format("\"kept\":{},\"rank\":{},\"pid\":{},\"host\":{}", step, self, getpid(),
                  quoted(std::getenv("PLIANT_HOST"))));
  return 0;
}

// Both tensors of everybody.
int check_both(Session& session, uint64_t step, uint64_t members, uint64_t bytes) {
  const auto version = session.gather(step);
  if (!version) return fail(version.error());
  const uint64_t found = (*version)->step();
  bool sound = (*version)->verify().ok();
  const auto check = [&](const std::string& name, uint64_t size, uint64_t first) {
    std::vector<std::byte> all(size);
    const auto number = (*version)->find(name);
    const auto box = number ? pliant::tensor::whole((*version)->tensors()[*number].shape)
                            : pliant::tensor::Box{};
    sound = sound && number && (*version)->read(*number, box, all).ok();
    for (uint64_t i = 0; i < size; ++i) sound = sound && all[i] == expected_at(first, i);
  };
  check("layer/w", members * bytes, found);
  for (uint64_t rank = 0; rank < members; ++rank) check(own_tensor(rank), kOwnBytes, found + rank);
  say(fmt::format("\"gathered\":{},\"sound\":{},\"pid\":{},\"host\":{}", found, sound, getpid(),
                  quoted(std::getenv("PLIANT_HOST"))));
  return sound ? 0 : 1;
}

int outlive(Session& session, char** words) {
  const uint64_t members = std::stoull(words[2]);
  const uint64_t step = std::stoull(words[4]);
  const uint64_t bytes = std::stoull(words[5]);
  const bool first = std::string(std::getenv("PLIANT_PEER")).ends_with("#1");
  if (first) {
    if (keep_both(session, members, std::stoull(words[3]), step, bytes) != 0) return 1;
    wait_for_file(words[6]);
  }
  (void)check_both(session, first ? step : Session::kNewest, members, bytes);
  while (true) pause();
}

// State that no other process makes.
std::vector<std::byte> random_state() {
  std::random_device random;
  std::vector<std::byte> state(kStateBytes + 3);
  for (std::byte& byte : state) byte = static_cast<std::byte>(random());
  return state;
}

int replace(Session& session) {
  const bool first = std::string(std::getenv("PLIANT_PEER")).ends_with("#1");
  std::vector<std::byte> state = first ? random_state() : std::vector<std::byte>(kStateBytes + 3);
  if (const auto registered = session.register_state("state", state); !registered.ok())
    return fail(registered.error());
  if (!first) {
    const auto step = session.restore_state(Session::kNewest);
    if (!step) return fail(step.error());
    say(fmt::format("\"restored\":{},\"checksum\":{}", *step, pliant::checksum64(state)));
    return 0;
  }
  const auto snapshot = session.snapshot(5);
  if (!snapshot) return fail(snapshot.error());
  if (const auto kept = snapshot->wait(); !kept.ok()) return fail(kept.error());
  say(fmt::format("\"kept\":5,\"pid\":{},\"checksum\":{}", getpid(), pliant::checksum64(state)));
  while (true) pause();
}

int partial(Session& session) {
  std::vector<std::byte> state = random_state();
  if (const auto registered = session.register_state("state", state); !registered.ok())
    return fail(registered.error());
  const bool writes = session.local_rank() == 0 && session.local_size() > 1;
  auto snapshot = pliant::Result<pliant::Snapshot>(pliant::invalid("none"));
  if (writes) {
    snapshot = session.snapshot(5);
    if (!snapshot) return fail(snapshot.error());
  }
  say(fmt::format("\"writes\":{},\"pid\":{}", writes, getpid()));
  while (true) pause();
}

int again(Session& session, uint64_t step) {
  std::vector<std::byte> state = random_state();
  if (const auto registered = session.register_state("state", state); !registered.ok())
    return fail(registered.error());
  const auto restored = session.restore_state(Session::kNewest);
  const std::string before = restored ? std::to_string(*restored) : "null";
  const auto snapshot = session.snapshot(step);
  if (!snapshot) return fail(snapshot.error());
  if (const auto kept = snapshot->wait(); !kept.ok()) return fail(kept.error());
  say(fmt::format("\"restored\":{},\"kept\":{},\"checksum\":{}", before, step,
                  pliant::checksum64(state)));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string mode = count > 1 ? words[1] : "";
  auto session = Session::open();
  if (!session) return fail(session.error());
  if (mode == "hold" && count == 5)
    return hold(**session, std::stoull(words[2]), std::stoull(words[3]), words[4]);
  if (mode == "spread" && count == 4)
    return spread(**session, std::stoull(words[2]), std::stoull(words[3]));
  if (mode == "outlive" && count == 7) return outlive(**session, words);
  if (mode == "replace") return replace(**session);
  if (mode == "partial") return partial(**session);
  if (mode == "again" && count == 3) return again(**session, std::stoull(words[2]));
  std::cerr << "store_worker: see the head of its source\n";
  return 2;
}
