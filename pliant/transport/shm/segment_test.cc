#include "pliant/transport/shm/segment.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

namespace pliant {
namespace {

constexpr size_t kHeapBytes = size_t{1} << 20;
constexpr size_t kPages = 3 * size_t{4096};

// Two processes' views of one segment, and memory of the owner's own.
class SharedPages : public testing::Test {
 protected:
  void SetUp() override {
    owner_ = std::move(Segment::create(kHeapBytes, 7).value());
    peer_ = std::move(Segment::map(dup(owner_->fd())).value());
    void* mapped =
        mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<std::byte*>(mapped);
    std::memset(memory_, 1, kPages);
  }
  void TearDown() override { munmap(memory_, kPages); }

  std::unique_ptr<Segment> owner_, peer_;
  std::byte* memory_ = nullptr;
};

TEST_F(SharedPages, PeersReachThemWhereTheyAre) {
  EXPECT_FALSE(owner_->contains(memory_, 1));
  ASSERT_TRUE(owner_->adopt(memory_, kPages - 100));
  EXPECT_TRUE(owner_->contains(memory_ + 10, kPages - 110));
  EXPECT_FALSE(owner_->contains(memory_ + 10, kPages));
  const uint64_t offset = owner_->offset_of(memory_ + 10);
  EXPECT_EQ(*peer_->at(offset), std::byte{1});
  *peer_->at(offset) = std::byte{2};
  EXPECT_EQ(memory_[10], std::byte{2});
  memory_[kPages - 101] = std::byte{3};
  EXPECT_EQ(*peer_->at(owner_->offset_of(memory_ + kPages - 101)), std::byte{3});
}

TEST_F(SharedPages, ArePrivateAgainAfterwards) {
  ASSERT_TRUE(owner_->adopt(memory_, kPages));
  const uint64_t offset = owner_->offset_of(memory_);
  *peer_->at(offset) = std::byte{2};
  ASSERT_TRUE(owner_->surrender(memory_));
  EXPECT_EQ(memory_[0], std::byte{2});
  EXPECT_EQ(memory_[kPages - 1], std::byte{1});
  EXPECT_FALSE(owner_->contains(memory_, 1));
  *peer_->at(offset) = std::byte{5};
  EXPECT_EQ(memory_[0], std::byte{2});
  // The room in the heap is free again.
  EXPECT_TRUE(owner_->allocate(kHeapBytes - 4096));
}

TEST_F(SharedPages, WrongMemoryIsRefusedAndLeftAlone) {
  EXPECT_FALSE(owner_->adopt(memory_ + 64, 100));
  EXPECT_FALSE(owner_->adopt(memory_, 0));
  EXPECT_FALSE(owner_->surrender(memory_));
  const auto registered = owner_->allocate(100);
  EXPECT_FALSE(owner_->surrender(registered->data()));
  ASSERT_TRUE(owner_->allocate(kHeapBytes / 2));
  ASSERT_TRUE(owner_->adopt(memory_, kPages));
  const Status twice = owner_->adopt(memory_, kPages);
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("shared already"), std::string::npos);
}

TEST_F(SharedPages, AHeapWithoutRoomLeavesThemAlone) {
  ASSERT_TRUE(owner_->allocate(kHeapBytes - 2 * 4096));
  const Status full = owner_->adopt(memory_, kPages);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.code(), Code::kOverloaded);
  EXPECT_EQ(memory_[0], std::byte{1});
  EXPECT_FALSE(owner_->contains(memory_, 1));
}

TEST_F(SharedPages, AreThereOnceFilled) {
  const auto pages = [&] {
    struct stat info {};
    EXPECT_EQ(fstat(owner_->fd(), &info), 0);
    return info.st_blocks * 512 / 4096;
  };
  const auto memory = owner_->allocate(kPages).value();
  const auto before = pages();
  owner_->fill(memory);
  // It begins within its first page, and so ends in a fourth.
  EXPECT_EQ(pages(), before + 4);
  EXPECT_EQ(memory[0], std::byte{0});
  owner_->fill(memory);
  owner_->release(memory.data());
  EXPECT_EQ(pages(), before);
}

TEST(Segment, LeavesNothingMapped) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    size_t ours = 0;
    for (std::string line; std::getline(maps, line);)
      if (line.find("memfd:pliant") != std::string::npos) ++ours;
    return ours;
  };
  const size_t before = mappings();
  auto segment = std::move(Segment::create(kHeapBytes).value());
  EXPECT_EQ(mappings(), before + 1);
  segment.reset();
  EXPECT_EQ(mappings(), before);
}

}  // namespace
}  // namespace pliant
