#include "lathe/core/cuda/attention/attention_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "lathe/core/base/error.h"

namespace lathe::cuda {
namespace {

// The shared memory that a block may have, by architecture.
constexpr size_t kSm90 = 227 << 10, kSm80 = 163 << 10, kSm86 = 99 << 10;

TEST(AttentionShape, BytesOfPlainTiles) {
  EXPECT_EQ(PlainForwardBytes({64, 64}), 52224u);
  EXPECT_EQ(PlainForwardBytes({256, 32}), 108544u);
  EXPECT_EQ(PlainBackwardBytes({64, 64}, 2), 104448u);
  EXPECT_EQ(PlainBackwardBytes({128, 64}, 2), 169984u);
  EXPECT_EQ(PlainBackwardBytes({256, 32}, 2), 217088u);
  EXPECT_EQ(PlainBackwardBytes({256, 16, true}, 2), 91904u);
}

TEST(AttentionShape, TilesOfManyQueries) {
  const auto backward = [](int head_dim, size_t available) {
    return ChoosePlainTile(true, head_dim, false, available);
  };
  EXPECT_EQ(backward(32, kSm90), (PlainTile{32, 64}));
  EXPECT_EQ(backward(64, kSm90), (PlainTile{64, 64}));
  EXPECT_EQ(backward(128, kSm90), (PlainTile{128, 64}));
  EXPECT_EQ(backward(256, kSm90), (PlainTile{256, 32}));
  EXPECT_EQ(backward(64, kSm80), (PlainTile{64, 64}));
  EXPECT_EQ(backward(128, kSm80), (PlainTile{128, 32}));
  EXPECT_EQ(backward(256, kSm80), (PlainTile{256, 16, true}));
  EXPECT_EQ(backward(32, kSm86), (PlainTile{32, 64}));
  EXPECT_EQ(backward(64, kSm86), (PlainTile{64, 32}));
  EXPECT_EQ(backward(128, kSm86), (PlainTile{128, 16}));
  EXPECT_EQ(backward(256, kSm86), (PlainTile{256, 16, true}));
  for (const size_t available : {kSm90, kSm80}) {
    EXPECT_EQ(ChoosePlainTile(false, 128, false, available), (PlainTile{128, 64}));
    EXPECT_EQ(ChoosePlainTile(false, 256, false, available), (PlainTile{256, 32}));
  }
  EXPECT_EQ(ChoosePlainTile(false, 128, false, kSm86), (PlainTile{128, 64}));
  EXPECT_EQ(ChoosePlainTile(false, 256, false, kSm86), (PlainTile{256, 16}));
}

TEST(AttentionShape, TilesFitEverywhere) {
  for (const size_t available : {kSm90, kSm80, kSm86}) {
    for (int head_dim = 1; head_dim <= 256; ++head_dim) {
      for (const bool first : {false, true}) {
        for (const bool backward : {false, true}) {
          const PlainTile tile = ChoosePlainTile(backward, head_dim, first, available);
          EXPECT_GE(tile.columns, head_dim);
          EXPECT_LT(tile.columns, std::max(2 * head_dim, 33)) << "no larger than needed";
          EXPECT_TRUE(!first || tile.queries == kSide);
          EXPECT_TRUE(backward || !tile.in_turns);
          EXPECT_LE(PlainForwardBytes(tile), available);
          if (backward) {
            EXPECT_LE(PlainBackwardBytes(tile, 2), available);
          }
        }
      }
    }
  }
}

TEST(AttentionShape, Stages) {
  EXPECT_EQ(TensorCoreQueriesBytes(128, 2), 104448u);
  EXPECT_EQ(TensorCoreQueriesBytes(128, 1), 69632u);
  for (const size_t available : {kSm90, kSm80}) {
    EXPECT_EQ(ChooseQueriesStages(128, 65, available), 2);
    EXPECT_EQ(ChooseQueriesStages(128, 64, available), 1);
  }
  EXPECT_EQ(ChooseQueriesStages(128, 512, kSm86), 1);
  EXPECT_EQ(ChooseQueriesStages(96, 512, kSm86), 2);
  EXPECT_EQ(ChooseQueriesStages(64, 512, kSm86), 2);
}

TEST(AttentionShape, SaysWhatIsMissing) {
  const auto why = [](const auto& choose) -> std::string {
    try {
      choose();
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  EXPECT_EQ(why([] { ChoosePlainTile(true, 200, false, 64 << 10); }),
            "[attention] heads of 200 columns need 91904 bytes of shared memory for a block of "
            "threads, but this GPU has 65536");
  EXPECT_EQ(why([] { ChoosePlainTile(false, 200, true, 64 << 10); }),
            "[attention] heads of 200 columns need 87552 bytes of shared memory for a block of "
            "threads, but this GPU has 65536");
  EXPECT_EQ(why([] { ChooseQueriesStages(128, 512, 64 << 10); }),
            "[attention] heads of 128 columns need 69632 bytes of shared memory for a block of "
            "threads, but this GPU has 65536");
}

}  // namespace
}  // namespace lathe::cuda
