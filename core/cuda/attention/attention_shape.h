// The shared memory of the attention kernels, and the choice of tiles that fit a device. A block
// may have 227 KiB on sm_90 and sm_100, 163 KiB on sm_80, and 99 KiB on sm_86, sm_89 and sm_120.
// These functions need no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lathe::cuda {

constexpr int kSide = 16;           // threads of a plain kernel's block along x and y
constexpr int kKeys = 4 * kSide;    // keys of a tile
constexpr int kKeysLd = kKeys + 4;  // row stride, in floats, of [queries, keys] in shared memory

// The row stride of a [rows, kD] tile in shared memory, in floats. With this padding, 16-byte loads
// from eight rows use different banks.
template <int kD>
constexpr int kLd = kD + 4;

// A tile of the plain kernels, for heads of up to `columns` columns.
struct PlainTile {
  int columns, queries;
  // If true, q and dout share one place in the backward pass, and so do k and v. They are then
  // loaded in turns.
  bool in_turns = false;

  bool operator==(const PlainTile&) const = default;
};
// All tiles. For each size of heads the fastest comes first. Tiles of kSide queries also serve
// calls with only the first query of each sequence.
inline constexpr PlainTile kPlainTiles[] = {{32, 64},  {32, 16},  {64, 64},       {64, 32},
                                            {64, 16},  {128, 64}, {128, 32},      {128, 16},
                                            {256, 32}, {256, 16}, {256, 16, true}};

// The shared memory of a forward block: q: [queries, columns], one place for k and then v:
// [64, columns], probabilities: [queries, 64].
constexpr size_t PlainForwardBytes(const PlainTile& tile) {
  const int rows = tile.queries + kKeys;
  return sizeof(float) * (rows * (tile.columns + 4) + tile.queries * kKeysLd);
}
// The shared memory of a backward block: q and dout: [queries, columns], k and v: [64, columns],
// and `scores` matrices of [queries, 64]. The kernel for dQ has one such matrix, that for dK and dV
// two.
constexpr size_t PlainBackwardBytes(const PlainTile& tile, int scores) {
  const int rows = (tile.in_turns ? 1 : 2) * (tile.queries + kKeys);
  return sizeof(float) * (rows * (tile.columns + 4) + scores * tile.queries * kKeysLd);
}

// Returns the fastest tile for heads of head_dim columns, at most 256, on a device whose blocks may
// have `available` bytes. Throws InvalidArgument if no tile fits.
PlainTile ChoosePlainTile(bool backward, int head_dim, bool first_query_only, size_t available);

// The shared memory of a block of the tensor core kernel for dQ: q and dout, then k and v for each
// stage. Each is [64, columns], with 8 elements of padding a row. With two stages, the next tile
// arrives in one while the other is worked on.
constexpr size_t TensorCoreQueriesBytes(int columns, int stages) {
  return sizeof(uint16_t) * (2 + 2 * stages) * 64 * (columns + 8);
}
// Returns the number of that kernel's stages, 1 or 2. `keys` is the length of the longest sequence.
// Throws InvalidArgument if not even one stage fits.
int ChooseQueriesStages(int columns, int keys, size_t available);

}  // namespace lathe::cuda
