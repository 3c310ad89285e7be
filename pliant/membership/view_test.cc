#include "pliant/membership/view.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

Member member(uint16_t slot) {
  Member made;
  made.id = {.host = slot / 2U, .slot = slot, .incarnation = 1};
  made.pid = 4711 + slot;
  made.host = "host" + std::to_string(slot / 2);
  made.address = slot % 2 == 0 ? "10.0.0.1" : "fe80::1";
  made.port = static_cast<uint16_t>(9000 + slot);
  made.local_name = slot == 2 ? "" : "pliant/" + std::to_string(slot);
  return made;
}

View view_of(uint16_t size) {
  View view{.epoch = Epoch{5}, .members = {}};
  for (uint16_t slot = 0; slot < size; ++slot) view.members.push_back(member(slot));
  return view;
}

TEST(View, FindsAndDescribesMembers) {
  const View view = view_of(3);
  EXPECT_EQ(view.size(), 3);
  EXPECT_EQ(view.rank_of(member(2).id), 2);
  EXPECT_EQ(view.at(1).port, 9001);
  EXPECT_EQ(view.describe(member(2).id), "rank 2 (host host1, pid 4713)");
  const PeerId stranger{.host = 0, .slot = 0, .incarnation = 2};
  EXPECT_EQ(view.rank_of(stranger), -1) << "another incarnation is another peer";
  EXPECT_EQ(view.describe(stranger), "peer 0.0#2");
}

TEST(View, EncodesAndDecodes) {
  for (const int size : {0, 1, 3, 17}) {
    const View view = view_of(static_cast<uint16_t>(size));
    const auto decoded = decode_view(encode(view));
    ASSERT_TRUE(decoded.ok()) << to_string(decoded.error());
    EXPECT_EQ(*decoded, view);
  }
}

TEST(View, EveryTruncationIsRefused) {
  const auto whole = encode(view_of(3));
  for (size_t length = 0; length < whole.size(); ++length) {
    // A copy of its own, so that a read past the end is a read out of bounds.
    const std::vector<std::byte> cut(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(length));
    const auto decoded = decode_view(cut);
    ASSERT_FALSE(decoded.ok()) << "cut to " << length << " of " << whole.size();
    EXPECT_EQ(decoded.code(), Code::kInvalid);
  }
}

TEST(View, WhatFollowsIsRefused) {
  auto bytes = encode(view_of(2));
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_view(bytes).ok());
}

TEST(View, AHugeCountIsRefusedBeforeAnythingIsAllocated) {
  for (const uint32_t count : {uint32_t{4}, uint32_t{kMembersMax} + 1, UINT32_MAX}) {
    auto bytes = encode(view_of(3));
    std::memcpy(bytes.data() + sizeof(uint32_t), &count, sizeof count);
    EXPECT_FALSE(decode_view(bytes).ok()) << count;
  }
}

TEST(View, AnEndlessNameIsRefused) {
  View view = view_of(1);
  view.members[0].host.assign(100'000, 'h');
  EXPECT_FALSE(decode_view(encode(view)).ok());
}

}  // namespace
}  // namespace pliant
