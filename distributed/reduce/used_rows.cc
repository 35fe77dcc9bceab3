#include "lathe/distributed/reduce/used_rows.h"

#include <bit>
#include <span>

namespace lathe {

std::optional<std::vector<int32_t>> UsedRows(ProcessGroup& group, const TensorImpl& table) {
  const size_t num_rows = static_cast<size_t>(table.shape[0]);
  // One bit for each row, and one that is set if this rank doesn't know its rows.
  std::vector<uint64_t> bits(num_rows / 64 + 1);
  if (const auto& rows = table.gradient().rows) {
    for (const int32_t row : *rows)
      bits[static_cast<size_t>(row) / 64] |= uint64_t{1} << (row % 64);
  } else {
    bits[num_rows / 64] |= uint64_t{1} << (num_rows % 64);
  }
  std::vector<uint64_t> all(bits.size() * static_cast<size_t>(group.size()));
  group.AllGather(std::as_bytes(std::span(bits)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) bits[i % bits.size()] |= all[i];
  if ((bits[num_rows / 64] >> (num_rows % 64) & 1) != 0) return {};
  std::vector<int32_t> rows;
  for (size_t word = 0; word < bits.size(); ++word) {
    for (uint64_t left = bits[word]; left != 0; left &= left - 1) {
      rows.push_back(static_cast<int32_t>(word * 64) + std::countr_zero(left));
    }
  }
  if (rows.size() > num_rows / 2) return {};
  return rows;
}

}  // namespace lathe
