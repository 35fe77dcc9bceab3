// What attention kernels have in common, whatever their products multiply: how work is shared out,
// and what is done to a tile of scores between two products.
//
// For kernel sources only, which are compiled once for each instruction set level.
#pragma once

#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "lathe/core/cpu/attention.h"
#include "lathe/core/cpu/math.h"
#include "lathe/core/cpu/row_bits.h"
#include "lathe/core/cpu/small_product.h"
#include "lathe/core/cpu/working_memory.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kTile = 64;  // queries that are handled together

// A thread's working memory, piece by piece. One at a time in a thread.
template <typename T>
class Scratch {
 public:
  // Before the parallel region: throws if a thread's would.
  static void Reserve(int64_t elements) { ReserveWorkingMemory(Bytes(elements)); }
  explicit Scratch(int64_t elements) : data_(static_cast<T*>(WorkingMemory(Bytes(elements)))) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* Take(int64_t elements) {
    T* taken = data_ + used_;
    used_ += (elements + 15) / 16 * 16;
    return taken;
  }

 private:
  static size_t Bytes(int64_t elements) { return static_cast<size_t>(elements) * sizeof(T); }

  T* const data_;
  int64_t used_ = 0;
};

// Heads that a thread takes at a time: few enough to share them out evenly, many enough that the
// threads don't meet all the time over who takes the next.
int64_t Chunk(const AttentionArgs& args) {
  const int64_t chunks = int64_t{32} * omp_get_max_threads();
  return 1 + args.batch * args.heads / chunks;
}

// From a strip of `rows` rows of head h to the next head's, or to the next sequence's first.
int64_t ToNext(const AttentionArgs& args, int64_t h, int64_t rows) {
  const int64_t d = args.head_dim;
  return h + 1 < args.heads ? d : rows * args.heads * d - h * d;
}

// The strips of a sequence s and head h: S keys, in whole lines, with scores' rows `ld` apart;
// queries from row q_begin on; where keys and values begin; from these, and from queries, to the
// next head's.
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

// Not above any score, so that no largest one is it.
template <typename M>
constexpr M kNoScore = -std::numeric_limits<M>::infinity();

// A tile's place: queries [first, first + rows) of a sequence and head with S keys.
struct TilePlace {
  int64_t sequence, head, first, rows, S;
};

constexpr int64_t kLanes = 16;

// Mask words of queries [first, first + rows): bits[i * ld + j] belongs to key j, as RowBits makes
// them. Short rows are made together, so that there is enough for whole registers. `bits` has room
// for kLanes more.
void TileBits(const AttentionArgs& args, int64_t sequence, int64_t head, int64_t first,
              int64_t rows, int64_t keys, uint32_t* bits, int64_t ld) {
  constexpr int64_t kTogether = 256;
  const uint32_t key0 = args.mask.key0;
  const uint32_t key1 = args.mask.key1 + static_cast<uint32_t>(head) * 0x9E3779B9u;
  const uint32_t sample = static_cast<uint32_t>(args.sample_ids[sequence]), step = args.mask.step;
  const int64_t blocks = (keys + 3) / 4;
  if (blocks >= 2 * kPhiloxTogether || blocks % kPhiloxTogether == 0) {
    for (int64_t i = 0; i < rows; ++i)
      RowBits(key0, key1, step, sample, static_cast<uint32_t>(first + i), keys, bits + i * ld);
    return;
  }
  // From a block to the one kPhiloxTogether further: so many rows and places, or one row more and
  // `blocks` places fewer.
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
        positions[r] -= over;  // all ones are -1
      }
    }
    // Whole registers are copied; what is too much is overwritten by what follows.
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

// x with `other` in the columns from S on, x being a row's last line.
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

// to[i * to_ld + j] = dropout(softmax(scores[i * ld + j])), which may be the same memory, with
// zeros from S up to a whole line; lse[lse_at + i * heads] = the log of the sum of exponentials,
// unless lse is null. `scores` is used up, `bits` is working memory.
template <typename To, typename M>
void Softmax(const AttentionArgs& args, const TilePlace& tile, M* scores, int64_t ld, To* to,
             int64_t to_ld, M* lse, int64_t lse_at, uint32_t* bits) {
  constexpr int64_t kSize = Line<M>::kSize;
  const int64_t rows = tile.rows, S = tile.S, last = WholeLines<M>(S) - kSize;
  const M scale = M(1) / std::sqrt(static_cast<M>(args.head_dim));
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
  if (threshold > 0) TileBits(args, tile.sequence, tile.head, tile.first, rows, S, bits, ld);
  const LastLine<M> last_line(S);
  // Loops of their own, so that one row's sums don't wait for another's, over so many rows that
  // they stay in the nearest cache.
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
      const uint32_t* row_bits = bits + (from + i) * ld;
      To* to_row = to + (from + i) * to_ld;
      const M by = keep_scale / sum[i];
      if (threshold > 0) {
#pragma omp simd
        for (int64_t j = 0; j < last + kSize; ++j) {
          const M kept = row[j] * by;
          Store(to_row[j], row_bits[j] < threshold ? M(0) : kept);
        }
      } else {
        for (int64_t j = 0; j <= last; j += kSize)
          StoreLanes(to_row + j, LineAt(row + j) * by, AllLanes{});
      }
    }
  }
}

// From scores in p and dO V^T in ds to dropout(softmax(scores)) and the scores' gradients, times
// the scores' scale, up to a whole line of columns: of those from S on nothing is said. dot:
// (rows), sums of dO O; lse: as Softmax left it, from the tile's first row on.
template <typename M>
void SoftmaxGradients(const AttentionArgs& args, const TilePlace& tile, M* p, M* ds, int64_t ld,
                      const M* dot, const M* lse, uint32_t* bits) {
  const int64_t rows = tile.rows, n = WholeLines<M>(tile.S);
  const M scale = M(1) / std::sqrt(static_cast<M>(args.head_dim));
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
  if (threshold > 0) TileBits(args, tile.sequence, tile.head, tile.first, rows, tile.S, bits, ld);
  for (int64_t i = 0; i < rows; ++i) {
    M* prow = p + i * ld;
    M* dsrow = ds + i * ld;
    const uint32_t* row_bits = bits + i * ld;
    const M log_sum = lse[i * args.heads];
    if (threshold > 0) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        const M m = row_bits[j] < threshold ? M(0) : keep_scale;
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
