// Tests how many blocks and threads kernels are launched with, at the limits.
#include "lathe/core/cuda/launch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "lathe/core/cuda/attention/attention_tile.h"
#include "lathe/core/cuda/norm_shape.h"
#include "lathe/core/cuda/rows.h"

namespace lathe::cuda {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;  // beyond 32 bits, and beyond any memory

// Returns true if every device takes such a grid.
bool IsGrid(dim3 grid) {
  return grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= 0x7fffffff && grid.y <= 65535 &&
         grid.z <= 65535;
}
bool IsBlock(dim3 block) {
  const int64_t threads = int64_t{block.x} * block.y * block.z;
  return threads >= 32 && threads <= 1024 && threads % 32 == 0 && block.z <= 64;
}

TEST(Launch, FlatKernels) {
  EXPECT_EQ(GridFor(0).x, 1u);
  EXPECT_EQ(GridFor(1).x, 1u);
  EXPECT_EQ(GridFor(kBlock).x, 1u);
  EXPECT_EQ(GridFor(kBlock + 1).x, 2u);
  EXPECT_EQ(GridFor(1000, 32).x, 32u);
  const int64_t full = int64_t{kBlock} * kMaxGrid;
  EXPECT_EQ(GridFor(full).x, static_cast<unsigned>(kMaxGrid));
  // Larger kernels loop: the grid stays the same.
  for (const int64_t n : {full + 1, int64_t{1} << 31, (int64_t{1} << 32) + 1, kHuge}) {
    EXPECT_EQ(GridFor(n).x, static_cast<unsigned>(kMaxGrid)) << n;
  }
  EXPECT_EQ(GridFor(5).y, 1u);
}

TEST(Launch, Rows) {
  EXPECT_EQ(GridForRows<WarpPerRow>(0).x, 1u);
  EXPECT_EQ(GridForRows<WarpPerRow>(1).x, 1u);
  EXPECT_EQ(GridForRows<WarpPerRow>(8).x, 1u);
  EXPECT_EQ(GridForRows<WarpPerRow>(9).x, 2u);
  EXPECT_EQ(GridForRows<BlockPerRow>(0).x, 1u);
  EXPECT_EQ(GridForRows<BlockPerRow>(9).x, 9u);
  EXPECT_EQ(GridForRows<BlockPerRow>(9, 4).x, 4u);
  for (const int64_t rows : {int64_t{1} << 31, kHuge}) {
    EXPECT_EQ(GridForRows<WarpPerRow>(rows).x, static_cast<unsigned>(kMaxGrid));
    EXPECT_EQ(GridForRows<BlockPerRow>(rows).x, static_cast<unsigned>(kMaxGrid));
  }
}

TEST(Launch, RowsOfANorm) {
  EXPECT_EQ(NormRowsGrid(0, 4).x, 1u);
  EXPECT_EQ(NormRowsGrid(1, 4).x, 1u);
  EXPECT_EQ(NormRowsGrid(5, 4).x, 2u);
  EXPECT_EQ(NormRowsGrid(kHuge, 1).x, 1u << 20);
  EXPECT_EQ(NormChunks(0, 768), 0);
  EXPECT_EQ(NormChunks(1, 768), 1);
  EXPECT_EQ(NormChunks(kHuge, 768), 264);
  EXPECT_EQ(NormChunks(kHuge, 2048), 132);
  for (int64_t n = 1; n <= 32768; ++n) {
    for (const int V : {1, 4, 8}) {
      if (n % (4 * V) != 0 && V > 1) continue;
      const int64_t threads = NormThreads(n, V);
      ASSERT_EQ(threads % 32, 0);
      ASSERT_LE(threads, kWideBlock);
      // Every column has a thread, and every warp has a column.
      ASSERT_GE(threads * kElements, n);
      ASSERT_LT((threads - 32) * kElements, n + 4 * V);
      if (n <= kWarpColumns) {
        ASSERT_EQ(threads, 32);
      }
    }
  }
}

TEST(Launch, BlocksOfANorm) {
  for (const int64_t n : {1, 3, 16, 768, 1023, 1024, 1025, 1152, 8192, 8193, 9001, 32767, 32768}) {
    for (const bool aligned : {false, true}) {
      int calls = 0;
      WithNormShape<4>(n, aligned, kNormBackwardRows, [&](auto v, auto most, dim3 block) {
        ++calls;
        EXPECT_TRUE(IsBlock(block)) << n;
        EXPECT_LE(block.x * block.y, static_cast<unsigned>(most())) << n;
        EXPECT_EQ(v(), aligned && n % 16 == 0 ? 4 : 1) << n;
        EXPECT_EQ(block.y, n <= kWarpColumns ? unsigned{kNormBackwardRows} : 1u) << n;
        EXPECT_GE(int64_t{block.x} * kElements, n);
      });
      EXPECT_EQ(calls, 1);
    }
  }
}

TEST(Launch, Attention) {
  AttentionParams params = {};
  params.heads = 12;
  params.batch = 32;
  const dim3 grid = AttentionGrid(params, 129, 64);
  EXPECT_EQ(grid.x, 3u);
  EXPECT_EQ(grid.y, 12u);
  EXPECT_EQ(grid.z, 32u);
  EXPECT_EQ(AttentionGrid(params, 1, 64).x, 1u);
  EXPECT_EQ(AttentionGrid(params, 64, 64).x, 1u);
  params.heads = params.batch =
      65535;  // the most that core/cuda/attention/attention.cu lets through
  EXPECT_TRUE(IsGrid(AttentionGrid(params, 1 << 20, 16)));
  // Every head size has a tile, with one query and with many. The number of a tile's queries is a
  // multiple of a block's side.
  for (const int head_dim : {1, 32, 33, 64, 65, 128, 129, 256}) {
    for (const bool first_only : {false, true}) {
      params.head_dim = head_dim;
      params.first_query_only = first_only;
      for (const bool backward : {false, true}) {
        int calls = 0;
        WithPlainTile(PlainTileOf(params, backward), [&](auto kd, auto kq, auto in_turns) {
          ++calls;
          EXPECT_GE(kd(), head_dim);
          EXPECT_EQ(kq() % kSide, 0);
          EXPECT_TRUE(!first_only || kq() == kSide);
          EXPECT_FALSE(in_turns());
          // The most shared memory that a block needs, which is in the part of the backward pass
          // for keys.
          const size_t bytes =
              sizeof(float) * (2 * (kq() + kKeys) * kLd<kd()> + 2 * kq() * kKeysLd);
          EXPECT_LE(bytes, size_t{227} << 10) << head_dim;
          EXPECT_EQ(bytes, PlainBackwardBytes({kd(), kq(), in_turns()}, 2));
        });
        EXPECT_EQ(calls, 1);
      }
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
