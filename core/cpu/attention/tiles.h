// Code that all attention kernels share, whatever types their products multiply. It divides the
// work among threads and handles a tile of scores between two products.
//
// Each kernel's backward pass is one function. Its steps share a dozen scratch tiles, which each
// part of it would take as arguments.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/base/working_memory.h"
#include "lathe/core/cpu/attention.h"
#include "lathe/core/cpu/dropout_bits.h"
#include "lathe/core/cpu/math.h"
#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kTile = 64;  // queries in a tile

// Hands out a thread's working memory piece by piece. A thread has at most one Scratch at a time.
template <typename T>
class Scratch {
 public:
  // Throws if a thread of the next parallel region could not get its memory; nothing may throw in
  // the region itself.
  static void Reserve(int64_t elements) { ReserveWorkingMemory(Bytes(elements)); }
  explicit Scratch(int64_t elements) : data_(static_cast<T*>(WorkingMemory(Bytes(elements)))) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* Take(int64_t elements) {
    T* taken = data_ + used_;
    used_ += RoundUp(elements, 16);
    return taken;
  }

 private:
  static size_t Bytes(int64_t elements) { return static_cast<size_t>(elements) * sizeof(T); }

  T* const data_;
  int64_t used_ = 0;
};

// Returns how many heads a thread takes at a time. They are few enough to share them out evenly,
// and many enough that threads don't contend for the next ones all the time.
int64_t Chunk(const AttentionArgs& args) {
  const int64_t chunks = int64_t{32} * omp_get_max_threads();
  return 1 + args.batch * args.heads / chunks;
}

// Returns the distance from a strip of `rows` rows of head h to the next head's strip. After the
// last head that is the first head of the next sequence.
int64_t ToNext(const AttentionArgs& args, int64_t h, int64_t rows) {
  const int64_t d = args.head_dim;
  return h + 1 < args.heads ? d : rows * args.heads * d - h * d;
}

// The strips of one sequence s and head h. There are S keys (`keys` in whole lines), and rows of
// scores are `ld` apart. The `queries` queries begin at row q_begin; the keys and values begin at
// element kv. The next head's keys and values lie `next` elements further, its queries `q_next`.
struct Strips {
  int64_t S, keys, ld, q_begin, queries, kv, next, q_next;
};
template <typename M>
[[gnu::always_inline]] inline Strips StripsOf(const AttentionArgs& args, int64_t s, int64_t h) {
  const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
  const int64_t queries = args.first_query_only ? 1 : S;
  return {.S = S,
          .keys = WholeLines<M>(S),
          .ld = RowStride<M>(S),
          .q_begin = args.first_query_only ? s : begin,
          .queries = queries,
          .kv = (begin * args.heads + h) * args.head_dim,
          .next = ToNext(args, h, S),
          .q_next = ToNext(args, h, queries)};
}

// Minus infinity: it exceeds no score, so it changes no row's maximum.
template <typename M>
constexpr M kNoScore = -std::numeric_limits<M>::infinity();

// The place of a tile: queries [first, first + rows) of a sequence and head with S keys. If the
// tile has only some of a sequence's keys, they begin at key_begin of all_keys.
struct TilePlace {
  int64_t sequence, head, first, rows, S;
  int64_t key_begin = 0, all_keys = 0;
};

// Returns the scale of the scores.
template <typename M>
M ScaleOf(const AttentionArgs& args) {
  return args.scale > 0 ? static_cast<M>(args.scale)
                        : M(1) / std::sqrt(static_cast<M>(args.head_dim));
}

constexpr int64_t kLanes = 16;

// Computes the mask words of queries [first, first + rows): bits[i * ld + j] belongs to key j, as
// DropoutBitsOfRow makes them. Short rows are made together, so that they fill whole registers.
// `bits` has room for kLanes more.
void TileBits(const AttentionArgs& args, int64_t sequence, int64_t head, int64_t first,
              int64_t rows, int64_t keys, uint32_t* bits, int64_t ld) {
  constexpr int64_t kTogether = 256;
  const uint32_t key0 = args.mask.key0;
  const uint32_t key1 = args.mask.key1 + static_cast<uint32_t>(head) * 0x9E3779B9u;
  const uint32_t sample = static_cast<uint32_t>(args.sample_ids[sequence]), step = args.mask.step;
  const int64_t blocks = (keys + 3) / 4;
  if (blocks >= 2 * kPhiloxTogether || blocks % kPhiloxTogether == 0) {
    for (int64_t i = 0; i < rows; ++i)
      DropoutBitsOfRow(key0, key1, step, sample, static_cast<uint32_t>(first + i), keys,
                       bits + i * ld);
    return;
  }
  // From a block to the one kPhiloxTogether further, the row grows by more_rows and the place in
  // the row by more_places. If that place is not below `blocks`, the block is one row further and
  // `blocks` places before it.
  const FullLanes row_blocks = FullLanes{} + static_cast<uint32_t>(blocks);
  const uint32_t more_rows = static_cast<uint32_t>(kPhiloxTogether / blocks);
  const uint32_t more_places = static_cast<uint32_t>(kPhiloxTogether % blocks);
  uint32_t words[4][kTogether + kPhiloxTogether];
  const int64_t group = kTogether / blocks;
  for (int64_t i = 0; i < rows; i += group) {
    const int64_t n = Min(group, rows - i);
    FullLanes places[kPhiloxRegisters] = {}, positions[kPhiloxRegisters] = {};
    uint32_t place = 0, position = static_cast<uint32_t>(first + i);
    for (int r = 0; r < kPhiloxRegisters; ++r) {
      for (int64_t l = 0; l < kPhiloxLanes; ++l) {
        places[r][l] = place;
        positions[r][l] = position;
        if (++place == blocks) place = 0, ++position;
      }
    }
    for (int64_t from = 0; from < n * blocks; from += kPhiloxTogether) {
      const PhiloxWords made = PhiloxAt(places, positions, sample, step, key0, key1);
      for (int w = 0; w < 4; ++w) std::memcpy(words[w] + from, made.words[w], sizeof(places));
      for (int r = 0; r < kPhiloxRegisters; ++r) {
        places[r] += more_places;
        positions[r] += more_rows;
        const FullLanes over = (FullLanes)(places[r] >= row_blocks);
        places[r] -= over & row_blocks;
        positions[r] -= over;  // a true lane is -1
      }
    }
    // Whole registers are copied; the words that follow overwrite the surplus.
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t w = 0; w < 4; ++w) {
        for (int64_t b = 0; b < blocks; b += kPhiloxLanes) {
          std::memcpy(bits + (i + r) * ld + w * blocks + b, words[w] + r * blocks + b,
                      sizeof(FullLanes));
        }
      }
    }
  }
}

// Computes the same for the keys of a tile: bits[i * ld + x] belongs to key tile.key_begin + x.
// Makes no more blocks of words than these keys need.
void BitsOfTile(const AttentionArgs& args, const TilePlace& tile, uint32_t* bits, int64_t ld) {
  if (tile.all_keys <= tile.S) {
    TileBits(args, tile.sequence, tile.head, tile.first, tile.rows, tile.S, bits, ld);
    return;
  }
  const uint32_t key1 = args.mask.key1 + static_cast<uint32_t>(tile.head) * 0x9E3779B9u;
  const uint32_t sample = static_cast<uint32_t>(args.sample_ids[tile.sequence]);
  const int64_t blocks = (tile.all_keys + 3) / 4, end = tile.key_begin + tile.S;
  // Word w of block b belongs to key w * blocks + b. The compiler knows w, so words stay in
  // registers.
  const auto words = [&]<int64_t w>() __attribute__((always_inline)) {
    const int64_t first = std::max(tile.key_begin, w * blocks), last = Min(end, (w + 1) * blocks);
    for (int64_t i = 0; i < tile.rows; ++i) {
      FullLanes positions[kPhiloxRegisters];
      for (FullLanes& p : positions) p = FullLanes{} + static_cast<uint32_t>(tile.first + i);
      for (int64_t key = first; key < last; key += kPhiloxTogether) {
        FullLanes places[kPhiloxRegisters];
        for (int r = 0; r < kPhiloxRegisters; ++r)
          places[r] = Counting(static_cast<uint32_t>(key - w * blocks + r * kPhiloxLanes));
        const PhiloxWords made =
            PhiloxAt(places, positions, sample, args.mask.step, args.mask.key0, key1);
        std::memcpy(bits + i * ld + key - tile.key_begin, made.words[w],
                    static_cast<size_t>(Min(kPhiloxTogether, last - key)) * 4);
      }
    }
  };
  words.template operator()<0>();
  words.template operator()<1>();
  words.template operator()<2>();
  words.template operator()<3>();
}

// Knows which columns of a row's last line are below S. Or() returns x with `other` in the columns
// from S on.
template <typename M>
struct LastLine {
  typedef std::conditional_t<sizeof(M) == 8, int64_t, int32_t> Flag;
  typedef Flag Flags __attribute__((vector_size(kRegisterBytes)));
  explicit LastLine(int64_t S) {
    const int64_t last = WholeLines<M>(S) - Line<M>::kSize;
    for (int64_t l = 0; l < Line<M>::kSize; ++l) counts[l] = last + l < S ? -1 : 0;
  }
  [[gnu::always_inline]] Lanes<M> Or(Lanes<M> x, M other) const {
    return counts ? x : Lanes<M>{} + other;
  }
  Flags counts;
};

// to[i * to_ld + j] = dropout(softmax(scores[i * ld + j])), with zeros from S up to a whole line;
// `to` may be the same memory as `scores`. Sets lse[lse_at + i * heads] to the log of the sum of
// exponentials, unless lse is null. `scores` is overwritten, `bits` is working memory.
template <typename To, typename M>
void Softmax(const AttentionArgs& args, const TilePlace& tile, M* scores, int64_t ld, To* to,
             int64_t to_ld, M* lse, int64_t lse_at, uint32_t* bits) {
  constexpr int64_t kSize = Line<M>::kSize;
  const int64_t rows = tile.rows, S = tile.S, last = WholeLines<M>(S) - kSize;
  const M scale = ScaleOf<M>(args);
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
  if (threshold > 0) BitsOfTile(args, tile, bits, ld);
  const LastLine<M> last_line(S);
  // Each pass has a loop of its own over the rows, so that one row's sums don't wait for another's.
  // It covers as many rows as stay in the nearest cache.
  constexpr int64_t kTogether = 8;
  M top[kTogether], sum[kTogether];
  for (int64_t from = 0; from < rows; from += kTogether) {
    const int64_t n = Min(kTogether, rows - from);
    for (int64_t i = 0; i < n; ++i) {
      const M* row = scores + (from + i) * ld;
      Lanes<M> largest = last_line.Or(LineAt(row + last), kNoScore<M>);
      for (int64_t j = 0; j < last; j += kSize) {
        const Lanes<M> line = LineAt(row + j);
        largest = largest > line ? largest : line;
      }
      top[i] = Largest<M>(largest);
    }
    for (int64_t i = 0; i < n; ++i) {
      M* row = scores + (from + i) * ld;
      Lanes<M> total = {};
      for (int64_t j = 0; j < last; j += kSize) {
        const Lanes<M> e = Exp(Lanes<M>((LineAt(row + j) - top[i]) * scale));
        StoreLanes(row + j, e, AllLanes{});
        total += e;
      }
      const Lanes<M> e = last_line.Or(Exp(Lanes<M>((LineAt(row + last) - top[i]) * scale)), M(0));
      StoreLanes(row + last, e, AllLanes{});
      sum[i] = Sum<M>(total + e);
    }
    for (int64_t i = 0; i < n; ++i) {
      if (lse != nullptr) lse[lse_at + (from + i) * args.heads] = top[i] * scale + std::log(sum[i]);
      const M* row = scores + (from + i) * ld;
      const uint32_t* dropout_bits = bits + (from + i) * ld;
      To* to_row = to + (from + i) * to_ld;
      const M by = keep_scale / sum[i];
      if (threshold > 0) {
#pragma omp simd
        for (int64_t j = 0; j < last + kSize; ++j) {
          const M kept = row[j] * by;
          Store(to_row[j], dropout_bits[j] < threshold ? M(0) : kept);
        }
      } else {
        for (int64_t j = 0; j <= last; j += kSize)
          StoreLanes(to_row + j, LineAt(row + j) * by, AllLanes{});
      }
    }
  }
}

// Turns the scores in p into dropout(softmax(scores)), and dO V^T in ds into the scores' gradients
// times the scores' scale. Works on whole lines; the columns from S on get no defined values. dot:
// (rows), the sums of dO O. lse: as Softmax stored it, from the tile's first row on.
template <typename M>
void SoftmaxGradients(const AttentionArgs& args, const TilePlace& tile, M* p, M* ds, int64_t ld,
                      const M* dot, const M* lse, uint32_t* bits) {
  const int64_t rows = tile.rows, n = WholeLines<M>(tile.S);
  const M scale = ScaleOf<M>(args);
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
  if (threshold > 0) BitsOfTile(args, tile, bits, ld);
  for (int64_t i = 0; i < rows; ++i) {
    M* prow = p + i * ld;
    M* dsrow = ds + i * ld;
    const uint32_t* dropout_bits = bits + i * ld;
    const M log_sum = lse[i * args.heads];
    if (threshold > 0) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        const M m = dropout_bits[j] < threshold ? M(0) : keep_scale;
        const M probability = Exp(prow[j] * scale - log_sum);
        dsrow[j] = probability * (m * dsrow[j] - dot[i]) * scale;
        prow[j] = probability * m;
      }
    } else {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        const M probability = Exp(prow[j] * scale - log_sum);
        dsrow[j] = probability * (dsrow[j] - dot[i]) * scale;
        prow[j] = probability;
      }
    }
  }
}

}  // namespace
}  // namespace lathe::cpu
