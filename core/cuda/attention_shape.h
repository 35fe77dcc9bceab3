// How much shared memory the attention kernels take, and which of their tiles a device has room
// for: a block may have 227 KiB on sm_90 and sm_100, 163 on sm_80, 99 on sm_86, sm_89 and sm_120.
// Plain functions, without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lathe::cuda {

constexpr int kSide = 16;           // threads of a plain kernel's block along x and y
constexpr int kKeys = 4 * kSide;    // keys of a tile
constexpr int kKeysLd = kKeys + 4;  // floats from row to row of (queries, keys) in shared memory

// Floats from row to row of (rows, kD) in shared memory: 16-byte loads of 8 rows meet all banks.
template <int kD>
constexpr int kLd = kD + 4;

// A tile of the plain kernels: for heads of up to so many columns.
struct PlainTile {
  int columns, queries;
  // In the backward pass q and dout have one place, and k and v: they are loaded in turns.
  bool in_turns = false;

  bool operator==(const PlainTile&) const = default;
};
// All there are; of each size of heads the fastest first. Those of kSide queries serve first
// queries alone, too.
inline constexpr PlainTile kPlainTiles[] = {{32, 64},  {32, 16},  {64, 64},       {64, 32},
                                            {64, 16},  {128, 64}, {128, 32},      {128, 16},
                                            {256, 32}, {256, 16}, {256, 16, true}};

// Of a block: q (queries, columns); k, then v (64, columns); probabilities (queries, 64).
constexpr size_t PlainForwardBytes(const PlainTile& tile) {
  const int rows = tile.queries + kKeys;
  return sizeof(float) * (rows * (tile.columns + 4) + tile.queries * kKeysLd);
}
// q, dout (queries, columns); k, v (64, columns); `scores` of (queries, 64): one in the kernel for
// dQ, two in that for dK and dV.
constexpr size_t PlainBackwardBytes(const PlainTile& tile, int scores) {
  const int rows = (tile.in_turns ? 1 : 2) * (tile.queries + kKeys);
  return sizeof(float) * (rows * (tile.columns + 4) + scores * tile.queries * kKeysLd);
}

// The tile for heads of head_dim columns, at most 256, on a device whose blocks may have
// `available` bytes. Throws InvalidArgument where none has room.
PlainTile ChoosePlainTile(bool backward, int head_dim, bool first_query_only, size_t available);

// The kernel for dQ on tensor cores, of a block: q and dout, then k and v for each stage,
// (64, columns) each, 8 more in memory. While a tile is worked on the next one arrives in the other
// stage, if there are two.
constexpr size_t TensorCoreQueriesBytes(int columns, int stages) {
  return sizeof(uint16_t) * (2 + 2 * stages) * 64 * (columns + 8);
}
// How many stages it gets, at most 2; `keys`: of the longest sequence. Throws as above.
int ChooseQueriesStages(int columns, int keys, size_t available);

}  // namespace lathe::cuda
