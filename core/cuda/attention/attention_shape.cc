#include "lathe/core/cuda/attention/attention_shape.h"

#include <algorithm>
#include <limits>

#include "lathe/core/base/error.h"

namespace lathe::cuda {
namespace {

void CheckRoom(int head_dim, size_t needed, size_t available) {
  Check(needed <= available, "attention", "heads of ", head_dim, " columns need ", needed,
        " bytes of shared memory for a block of threads, but this GPU has ", available);
}

}  // namespace

PlainTile ChoosePlainTile(bool backward, int head_dim, bool first_query_only, size_t available) {
  size_t least = std::numeric_limits<size_t>::max();
  for (const PlainTile& tile : kPlainTiles) {
    if (tile.columns < head_dim || (tile.in_turns && !backward)) continue;
    if (first_query_only && tile.queries != kSide) continue;
    const size_t bytes = backward ? PlainBackwardBytes(tile, 2) : PlainForwardBytes(tile);
    if (bytes <= available) return tile;
    least = std::min(least, bytes);
  }
  CheckRoom(head_dim, least, available);
  return {};
}

int ChooseQueriesStages(int columns, int keys, size_t available) {
  if (keys > kKeys && TensorCoreQueriesBytes(columns, 2) <= available) return 2;
  CheckRoom(columns, TensorCoreQueriesBytes(columns, 1), available);
  return 1;
}

}  // namespace lathe::cuda
