#include "lathe/core/base/philox.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

void ExpectBlock(PhiloxBlock counter, uint32_t key0, uint32_t key1, PhiloxBlock expected) {
  const PhiloxBlock actual = Philox4x32(counter, key0, key1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.v[i], expected.v[i]) << i;
}

// The known answers that Random123 publishes (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  ExpectBlock({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  ExpectBlock({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  ExpectBlock({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

// The published answers of FNV-1a.
TEST(Philox, HashName) {
  EXPECT_EQ(HashName(""), 0xcbf29ce484222325u);
  EXPECT_EQ(HashName("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(HashName("foobar"), 0x85944171f73967e8u);
}

TEST(Philox, DropThreshold) {
  EXPECT_EQ(DropThreshold(0), 0u);
  EXPECT_EQ(DropThreshold(0.5), 0x80000000u);
}

TEST(Philox, KeysDiffer) {
  const RandomKey a{.seed = 1, .step = 0, .site = 2}, b{.seed = uint64_t{1} << 32, .site = 2};
  EXPECT_NE(a.key0(), b.key0());
  EXPECT_EQ(a.key1(), 2u);
}

}  // namespace
}  // namespace lathe
