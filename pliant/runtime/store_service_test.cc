#include "pliant/runtime/store_service.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "pliant/runtime/snapshot.h"
#include "pliant/runtime/store_client.h"
#include "pliant/store/test_folder.h"
#include "pliant/store/test_vault.h"
#include "pliant/transport/handshake.h"

namespace pliant {
namespace {

using store::box_of;
using store::counted;
using store::part_of;
using store::Vault;

const std::string kToken(32, 't');
const std::vector<uint64_t> kShape = {4, 6};
const store::Box kAll = box_of({{0, 4}, {0, 6}});

Instant soon() { return now() + std::chrono::seconds(30); }

class StoreServiceTest : public testing::Test {
 protected:
  void open(store::VaultOptions vault = {}) {
    StoreService::Options options;
    options.job = "job";
    options.token = kToken;
    options.host = 3;
    options.vault = vault;
    options.hello_max = std::chrono::seconds(20);
    service_ = std::move(*StoreService::open(options));
  }
  StorePlace place() const { return {service_->name(), "job", kToken, 3}; }
  StoreClient client() const { return StoreClient(place()); }
  static store::VaultPart part(int32_t first = 0) {
    return part_of({counted("w", kShape, kAll, first)});
  }
  // A line that has proven itself.
  StoreLine raw_line() const {
    StoreLine line(std::move(*connect_local(service_->name(), LocalKind::kStream)));
    prove(line);
    return line;
  }
  static void prove(StoreLine& line) {
    Hello hello;
    hello.job = "job";
    hello.token = kToken;
    hello.from = {.host = 3, .slot = 1, .incarnation = 1};
    hello.to = {.host = 3, .slot = 0, .incarnation = 0};
    line.send_raw(encode(hello));
    EXPECT_TRUE(line.flush().value());
    while (line.waiting_bytes() < kAnswerBytes && wait_for(line)) {
    }
    line.skip_raw(kAnswerBytes);
  }
  // Takes in more; false if the store has hung up.
  static bool wait_for(StoreLine& line) {
    pollfd entry{line.socket().get(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, 30'000), 1);
    return line.fill().ok();
  }

  std::unique_ptr<StoreService> service_;
};

TEST_F(StoreServiceTest, AVersionOutlivesWhoHandedItOver) {
  open();
  {
    const StoreClient writer = client();
    ASSERT_TRUE(writer.hand_over({7, 1, 0, 1}, part(5), soon()).ok());
  }
  const auto version = client().fetch(Vault::kNewest, soon());
  ASSERT_TRUE(version.ok()) << to_string(version.error());
  EXPECT_EQ((*version)->step(), 7U);
  EXPECT_TRUE((*version)->verify().ok());
  const store::Box box = box_of({{1, 3}, {2, 5}});
  std::vector<std::byte> got(6 * 4);
  ASSERT_TRUE((*version)->read(0, box, got).ok());
  EXPECT_EQ(got, counted("w", kShape, box, 5).elements);
  // What a reader gets is as closed to writing as what was handed over.
  EXPECT_EQ(mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED,
                 (*version)->parts()[0].memory->fd().get(), 0),
            MAP_FAILED);
  const auto list = client().list(soon());
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1U);
  EXPECT_EQ((*list)[0].step, 7U);
  EXPECT_EQ((*list)[0].tensors, 1U);
}

TEST_F(StoreServiceTest, AVersionIsCompleteWhenAllWritersHaveCome) {
  open();
  auto first = std::async(std::launch::async, [&] {
    return client().hand_over({7, 1, 0, 2},
                              part_of({counted("w", kShape, box_of({{0, 2}, {0, 6}}))}), soon());
  });
  EXPECT_FALSE(client().fetch(7, soon()).ok());
  ASSERT_TRUE(client()
                  .hand_over({7, 1, 1, 2},
                             part_of({counted("w", kShape, box_of({{2, 4}, {0, 6}}))}), soon())
                  .ok());
  EXPECT_TRUE(first.get().ok());
  const auto version = client().fetch(7, soon());
  ASSERT_TRUE(version.ok());
  EXPECT_EQ((*version)->parts().size(), 2U);
  EXPECT_EQ((*version)->covered(0).value(), 24U);
}

TEST_F(StoreServiceTest, AWriterThatIsGoneLeavesNothing) {
  // Room for two parts: while the first one's is there, two more cannot be.
  open({.bytes_max = 2 * part().memory->bytes().size(), .versions_max = 2});
  {
    StoreLine dying = raw_line();
    const auto mine = part();
    dying.send(StoreKind::kOffer, encode(StoreOffer{{7, 1, 0, 2}, mine.manifest}), mine.memory);
    ASSERT_TRUE(dying.flush().value());
    // The answer to this comes after the part was taken.
    dying.send(StoreKind::kList, {});
    ASSERT_TRUE(dying.flush().value());
    ASSERT_TRUE(wait_for(dying));
    // Beside it there is room for one version, not for two.
    ASSERT_TRUE(client().hand_over({8, 1, 0, 1}, part(), soon()).ok());
    ASSERT_EQ(client().hand_over({9, 1, 0, 1}, part(), soon()).code(), Code::kOverloaded);
  }
  // The line is closed; the store notices on its own time.
  while (!client().hand_over({9, 1, 0, 1}, part(), soon()).ok()) std::this_thread::yield();
  EXPECT_FALSE(client().fetch(7, soon()).ok());
  EXPECT_EQ(client().list(soon())->size(), 2U);
}

TEST_F(StoreServiceTest, HalfAnOfferLeavesNothing) {
  open();
  {
    StoreLine dying = raw_line();
    const auto mine = part();
    // The head of a frame, with its memory, and nothing of its body.
    Writer writer;
    writer.put(uint32_t{0x524f5453});
    writer.put(static_cast<uint8_t>(StoreKind::kOffer));
    writer.put(std::array<uint8_t, 3>{1, 0, 0});
    writer.put(uint64_t{100});
    const int fd = mine.memory->fd().get();
    ASSERT_TRUE(send_descriptors(dying.socket(), writer.bytes(), {&fd, 1}).ok());
  }
  EXPECT_TRUE(client().hand_over({8, 1, 0, 1}, part(), soon()).ok());
  EXPECT_EQ(client().list(soon())->size(), 1U);
}

TEST_F(StoreServiceTest, AWaitEndsAtItsDeadlineOrWhenItIsCancelled) {
  open();
  const Status late =
      client().hand_over({7, 1, 0, 2}, part(), now() + std::chrono::milliseconds(50));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.code(), Code::kTimeout);
  EXPECT_NE(late.error().message.find("not all 2 writers"), std::string::npos);
  const Fd cancel(eventfd(1, EFD_CLOEXEC));
  EXPECT_EQ(client().hand_over({7, 1, 0, 2}, part(), soon(), cancel.get()).code(),
            Code::kCancelled);
}

TEST_F(StoreServiceTest, StrangersAreRefused) {
  open();
  StorePlace wrong = place();
  wrong.token[5] = 'x';
  const auto refused = StoreClient(wrong).list(soon());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("wrong token or job"), std::string::npos)
      << refused.error().message;
  wrong = place();
  wrong.job = "other";
  EXPECT_FALSE(StoreClient(wrong).list(soon()).ok());
  wrong = place();
  wrong.name += "x";
  EXPECT_EQ(StoreClient(wrong).list(soon()).code(), Code::kPeerLost);
}

TEST_F(StoreServiceTest, NoiseFromStrangersEndsTheirLine) {
  open();
  for (const size_t size : {size_t{8}, size_t{5000}, size_t{300'000}}) {
    StoreLine line(std::move(*connect_local(service_->name(), LocalKind::kStream)));
    line.send_raw(std::vector<std::byte>(size, std::byte{0x5a}));
    (void)line.flush();
    while (wait_for(line)) {
    }
  }
  EXPECT_TRUE(client().list(soon()).ok());
}

TEST_F(StoreServiceTest, BrokenFramesEndTheLineOfAWorker) {
  open();
  const auto refused = [&](uint32_t magic, uint8_t kind, uint8_t memory, uint64_t bytes) {
    StoreLine line = raw_line();
    Writer writer;
    writer.put(magic);
    writer.put(kind);
    writer.put(std::array<uint8_t, 3>{memory, 0, 0});
    writer.put(bytes);
    line.send_raw(writer.bytes());
    EXPECT_TRUE(line.flush().value());
    while (wait_for(line)) {
    }
    return true;
  };
  EXPECT_TRUE(refused(1, 1, 0, 0));
  EXPECT_TRUE(refused(0x524f5453, 99, 0, 0));
  EXPECT_TRUE(refused(0x524f5453, 1, 0, UINT64_MAX));  // nothing is allocated for it
  EXPECT_TRUE(refused(0x524f5453, 1, 1, 0));           // memory announced that did not come
  EXPECT_TRUE(refused(0x524f5453, static_cast<uint8_t>(StoreKind::kPart), 0, 0));
  EXPECT_TRUE(client().list(soon()).ok());
}

TEST_F(StoreServiceTest, MemoryThatCouldChangeIsRefused) {
  open();
  StoreLine line = raw_line();
  const auto mine = part();
  Fd open_one(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_one.get(), static_cast<off_t>(mine.manifest.memory_bytes)), 0);
  const std::vector<std::byte> body = encode(StoreOffer{{7, 1, 0, 1}, mine.manifest});
  Writer writer;
  writer.put(uint32_t{0x524f5453});
  writer.put(static_cast<uint8_t>(StoreKind::kOffer));
  writer.put(std::array<uint8_t, 3>{1, 0, 0});
  writer.put(static_cast<uint64_t>(body.size()));
  std::vector<std::byte> bytes = writer.bytes();
  bytes.insert(bytes.end(), body.begin(), body.end());
  const int fd = open_one.get();
  ASSERT_EQ(send_descriptors(line.socket(), bytes, {&fd, 1}).value(), bytes.size());
  std::optional<StoreFrame> answer;
  while (!answer && wait_for(line)) answer = std::move(line.next().value());
  ASSERT_TRUE(answer.has_value());
  const Status outcome = decode_outcome(answer->body);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("not sealed"), std::string::npos);
  EXPECT_TRUE(client().list(soon())->empty());
}

TEST_F(StoreServiceTest, ALimitIsToldToTheWriter) {
  open({.bytes_max = 64, .versions_max = 2});
  const Status refused = client().hand_over({7, 1, 0, 1}, part(), soon());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), Code::kOverloaded);
  EXPECT_NE(refused.error().message.find("room for two versions"), std::string::npos);
}

TEST_F(StoreServiceTest, TheNewestVersionIsThereWhenTheJobStartsAgain) {
  const store::TestFolder folder;
  StoreService::Options options;
  options.job = "job";
  options.token = kToken;
  options.host = 3;
  options.file = folder / "made/localhost.safetensors";
  service_ = std::move(*StoreService::open(options));
  for (const uint64_t step : {7, 8})
    ASSERT_TRUE(client().hand_over({step, 1, 0, 1}, part(static_cast<int32_t>(step)), soon()).ok());
  service_.reset();
  service_ = std::move(*StoreService::open(options));
  const auto version = client().fetch(Vault::kNewest, soon());
  ASSERT_TRUE(version.ok()) << to_string(version.error());
  EXPECT_EQ((*version)->step(), 8U);
  std::vector<std::byte> got(24 * 4);
  ASSERT_TRUE((*version)->read(0, kAll, got).ok());
  EXPECT_EQ(got, counted("w", kShape, kAll, 8).elements);
  service_.reset();
  // A damaged file is no reason not to start.
  folder.put("made/localhost.safetensors", "damaged");
  service_ = std::move(*StoreService::open(options));
  EXPECT_TRUE(client().list(soon())->empty());
  options.file = folder / "made/localhost.safetensors/below/x";
  EXPECT_FALSE(StoreService::open(options).ok());
}

TEST_F(StoreServiceTest, AVersionIsCopiedToAnotherHost) {
  StoreService::Options options;
  options.job = "job";
  options.token = kToken;
  options.http_address = "127.0.0.1";
  options.host = 3;
  service_ = std::move(*StoreService::open(options));
  options.host = 4;
  auto other = std::move(*StoreService::open(options));
  const StoreClient there(other->place());
  const auto mine = part_of({counted("w", kShape, box_of({{0, 4}, {0, 2}}))});
  const auto theirs = part_of({counted("w", kShape, box_of({{0, 4}, {2, 6}}))});
  ASSERT_TRUE(client().hand_over({7, 1, 0, 1}, mine, soon()).ok());
  const std::vector<StorePeer> peers = {{4, other->copies_endpoint()}};
  service_->know(peers, peers);
  ASSERT_TRUE(there.hand_over({7, 1, 0, 1}, theirs, soon()).ok());
  const auto covered = [&](uint64_t step) {
    const auto version = there.fetch(step, soon());
    return version ? (*version)->covered(0).value() : 0;
  };
  while (covered(7) < 24) std::this_thread::yield();
  const auto version = there.fetch(7, soon());
  std::vector<std::byte> got(24 * 4);
  ASSERT_TRUE((*version)->read(0, kAll, got).ok());
  EXPECT_EQ(got, counted("w", kShape, kAll).elements);
  EXPECT_TRUE((*version)->verify().ok());
  // The next one goes by itself, larger than one chunk; and the host it came from may end.
  const std::vector<uint64_t> large = {3, 500'000};
  const store::Box all = tensor::whole(large);
  ASSERT_TRUE(client().hand_over({8, 1, 0, 1}, part_of({counted("v", large, all)}), soon()).ok());
  while (covered(8) < 1'500'000) std::this_thread::yield();
  service_.reset();
  EXPECT_TRUE((*there.fetch(8, soon()))->verify().ok());
}

TEST_F(StoreServiceTest, CopiesThatAreNoneAreRefused) {
  StoreService::Options options;
  options.job = "job";
  options.token = kToken;
  options.http_address = "127.0.0.1";
  options.host = 3;
  options.vault.bytes_max = size_t{1} << 20;
  service_ = std::move(*StoreService::open(options));
  const auto mine = part();
  // What follows the hello, and whether an answer comes before the line ends.
  const auto answered = [&](const std::vector<std::pair<StoreKind, std::vector<std::byte>>>& sent) {
    const auto address = parse_endpoint(service_->copies_endpoint());
    StoreLine line(std::move(*connect_tcp(*address)));
    pollfd entry{line.socket().get(), POLLOUT, 0};
    EXPECT_EQ(poll(&entry, 1, 30'000), 1);
    prove(line);
    for (const auto& [kind, body] : sent) line.send(kind, body);
    EXPECT_TRUE(line.flush().value());
    std::optional<StoreFrame> answer;
    while (!answer && wait_for(line)) answer = std::move(line.next().value());
    return answer.has_value() && decode_outcome(answer->body).ok();
  };
  const auto about = encode(StoreCopy{9, StoreCopy::Purpose::kCopy, {7, 1, 1}});
  const auto manifest = store::encode(mine.manifest);
  const Bytes memory = mine.memory->bytes();
  const std::vector<std::byte> bytes(memory.begin(), memory.end());
  using Kind = StoreKind;
  EXPECT_TRUE(
      answered({{Kind::kCopy, about}, {Kind::kCopyPart, manifest}, {Kind::kCopyBytes, bytes}}));
  EXPECT_EQ(client().list(soon())->size(), 1U);
  std::vector<std::byte> wrong = bytes;
  wrong[0] ^= std::byte{1};
  EXPECT_FALSE(
      answered({{Kind::kCopy, about}, {Kind::kCopyPart, manifest}, {Kind::kCopyBytes, wrong}}));
  EXPECT_FALSE(answered({{Kind::kCopyPart, manifest}}));
  EXPECT_FALSE(answered({{Kind::kCopy, about}, {Kind::kCopyBytes, bytes}}));
  EXPECT_FALSE(answered({{Kind::kCopy, about}, {Kind::kCopy, about}}));
  EXPECT_FALSE(answered({{Kind::kAsk, encode_ask(7)}}));
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  EXPECT_FALSE(
      answered({{Kind::kCopy, about}, {Kind::kCopyPart, manifest}, {Kind::kCopyBytes, longer}}));
  store::Manifest large = mine.manifest;
  large.memory_bytes = uint64_t{1} << 50;
  EXPECT_FALSE(answered({{Kind::kCopy, about}, {Kind::kCopyPart, store::encode(large)}}));
  // None of them has replaced the good one.
  EXPECT_TRUE((*client().fetch(7, soon()))->verify().ok());
}

// ---- Snapshots --------------------------------------------------------------------------------

SnapshotPiece piece_over(const std::vector<int32_t>& values, const store::Box& box) {
  return {{"w", DType::kI32, kShape}, box, std::as_bytes(std::span(values))};
}

TEST_F(StoreServiceTest, ASnapshotHoldsWhatWasThereWhenItWasTaken) {
  open();
  Snapshots snapshots({.place = place()});
  std::vector<int32_t> values(24, 1);
  const auto taken = snapshots.take({7, 1, 0, 1}, std::vector{piece_over(values, kAll)});
  ASSERT_TRUE(taken.ok()) << to_string(taken.error());
  std::fill(values.begin(), values.end(), 2);  // training goes on
  ASSERT_TRUE(taken->wait().ok());
  EXPECT_GT(taken->pause().count(), 0);
  EXPECT_GE(taken->bytes(), 96U);
  const auto version = snapshots.restore(Vault::kNewest);
  ASSERT_TRUE(version.ok());
  std::vector<int32_t> got(24);
  ASSERT_TRUE((*version)->read(0, kAll, std::as_writable_bytes(std::span(got))).ok());
  EXPECT_EQ(got, std::vector<int32_t>(24, 1));
  EXPECT_TRUE((*version)->verify().ok());
}

TEST_F(StoreServiceTest, SnapshotsInFlightAreBoundedAndEndWithTheirOwner) {
  open();
  const std::vector<int32_t> values(24, 1);
  const std::vector pieces{piece_over(values, kAll)};
  std::optional<Snapshot> left;
  {
    Snapshots snapshots({.place = place()});
    for (uint64_t step = 0; step < Snapshots::kInFlightMax; ++step)
      left = *snapshots.take({step, 1, 0, 2}, pieces);  // the other writer never comes
    EXPECT_EQ(snapshots.take({9, 1, 0, 2}, pieces).code(), Code::kOverloaded);
    EXPECT_FALSE(left->done());
  }
  EXPECT_EQ(left->wait().code(), Code::kCancelled);
}

TEST(Snapshots, AProcessAloneKeepsThemItself) {
  Snapshots snapshots({});
  const std::vector<int32_t> values(24, 1);
  ASSERT_TRUE(snapshots.take({7, 0, 0, 1}, std::vector{piece_over(values, kAll)})->wait().ok());
  EXPECT_EQ((*snapshots.restore(Vault::kNewest))->step(), 7U);
  EXPECT_FALSE(snapshots.restore(8).ok());
}

TEST(Snapshots, PiecesThatAreNoneAreRefused) {
  Snapshots snapshots({});
  const std::vector<int32_t> values(24, 1);
  const auto refused = [&](const SnapshotPiece& piece) {
    return !snapshots.take({7, 0, 0, 1}, std::vector{piece}).ok();
  };
  EXPECT_TRUE(refused(piece_over(values, box_of({{0, 4}, {0, 5}}))));
  EXPECT_TRUE(refused(piece_over(values, box_of({{0, 24}}))));
  EXPECT_TRUE(refused(piece_over(values, box_of({{0, 3}, {0, 8}}))));
  SnapshotPiece nameless = piece_over(values, kAll);
  nameless.tensor.name = "";
  EXPECT_TRUE(refused(nameless));
  EXPECT_FALSE(snapshots.take({7, 0, 0, 1}, {}).ok());
  SnapshotPiece other = piece_over(values, kAll);
  other.tensor.dtype = DType::kF32;
  EXPECT_FALSE(snapshots.take({7, 0, 0, 1}, std::vector{piece_over(values, kAll), other}).ok());
}

}  // namespace
}  // namespace pliant
