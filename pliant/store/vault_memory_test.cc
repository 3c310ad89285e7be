#include "pliant/store/vault_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace pliant::store {
namespace {

constexpr std::array kWord = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};

VaultMemory::Shared sealed() {
  auto draft = VaultDraft::make(100);
  EXPECT_TRUE(draft->write(96, kWord).ok());
  return draft->seal().value();
}

TEST(VaultMemory, HoldsWhatWasWritten) {
  const auto memory = sealed();
  ASSERT_EQ(memory->bytes().size(), 100U);
  EXPECT_EQ(std::memcmp(memory->bytes().data() + 96, kWord.data(), 4), 0);
  EXPECT_EQ(memory->bytes()[0], std::byte{0});
}

TEST(VaultMemory, CannotBeChangedByWhoeverHasItsDescriptor) {
  const auto memory = sealed();
  const int fd = memory->fd().get();
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
  EXPECT_LT(ftruncate(fd, 10), 0);
  EXPECT_LT(ftruncate(fd, 1000), 0);
  EXPECT_EQ(mmap(nullptr, 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
}

TEST(VaultMemory, OnlySealedMemoryOfTheRightSizeIsAdopted) {
  const auto memory = sealed();
  EXPECT_TRUE(VaultMemory::adopt(Fd(dup(memory->fd().get())), 100).ok());
  EXPECT_FALSE(VaultMemory::adopt(Fd(dup(memory->fd().get())), 99).ok());
  EXPECT_FALSE(VaultMemory::adopt(Fd(dup(memory->fd().get())), 0).ok());
  Fd open_one(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_one.get(), 100), 0);
  EXPECT_FALSE(VaultMemory::adopt(std::move(open_one), 100).ok());
  EXPECT_FALSE(VaultMemory::adopt(Fd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), 100).ok());
  EXPECT_FALSE(VaultMemory::adopt(Fd(), 100).ok());
}

TEST(VaultMemory, ThereIsNoneOfNoBytes) { EXPECT_FALSE(VaultDraft::make(0).ok()); }

}  // namespace
}  // namespace pliant::store
