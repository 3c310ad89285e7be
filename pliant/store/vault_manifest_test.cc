#include "pliant/store/vault_manifest.h"

#include <gtest/gtest.h>

#include "pliant/store/test_vault.h"

namespace pliant::store {
namespace {

Manifest example() {
  return part_of({counted("w", {4, 6}, box_of({{0, 2}, {1, 6}})),
                  counted("w", {4, 6}, box_of({{2, 4}, {0, 6}})), counted("step", {}, Box{})})
      .manifest;
}

TEST(Manifest, ComesBackAsItWas) {
  const auto decoded = decode_manifest(encode(example()));
  ASSERT_TRUE(decoded.ok()) << to_string(decoded.error());
  EXPECT_EQ(*decoded, example());
}

TEST(Manifest, PiecesAreAlignedAndApart) {
  const Manifest manifest = example();
  uint64_t end = 0;
  for (const ManifestPiece& piece : manifest.pieces) {
    EXPECT_EQ(piece.offset % Manifest::kAlignment, 0U);
    EXPECT_GE(piece.offset, end);
    end = piece.offset + manifest.piece_bytes(piece);
  }
  EXPECT_LE(end, manifest.memory_bytes);
}

TEST(Manifest, NoTruncationIsTakenForAManifest) {
  const std::vector<std::byte> bytes = encode(example());
  for (size_t i = 0; i < bytes.size(); ++i)
    EXPECT_FALSE(decode_manifest(Bytes(bytes).first(i)).ok()) << i;
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  EXPECT_FALSE(decode_manifest(longer).ok());
}

TEST(Manifest, CountsWithoutContentAreRefusedBeforeAnythingIsAllocated) {
  Writer writer;
  writer.put(uint64_t{64});
  writer.put(UINT32_MAX);
  EXPECT_FALSE(decode_manifest(writer.bytes()).ok());
}

TEST(Manifest, WhatDoesNotFitIsRefused) {
  const auto refused = [](auto spoil) {
    Manifest manifest = example();
    spoil(manifest);
    return !check(manifest).ok() && !decode_manifest(encode(manifest)).ok();
  };
  EXPECT_TRUE(refused([](Manifest& m) { m.pieces[0].box.end[0] = 5; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.pieces[0].box.begin[0] = 3; }));  // inverted
  EXPECT_TRUE(refused([](Manifest& m) { m.pieces[1].offset = m.memory_bytes; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.pieces[1].offset = UINT64_MAX - 63; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.pieces[1].offset += 4; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.memory_bytes = 1; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[1].name = "w"; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[1].name = ""; }));
  Manifest nothing;
  nothing.tensors = {{"none", DType::kF32, {0}}};
  EXPECT_FALSE(place_pieces(nothing).ok());
}

}  // namespace
}  // namespace pliant::store
