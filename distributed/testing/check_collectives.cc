#include "lathe/distributed/testing/check_collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

void CheckSumsOfFloats(ProcessGroup& group, size_t size) {
  const int n = group.size(), triangle = n * (n + 1) / 2;
  std::vector<float> floats(size, static_cast<float>(group.rank() + 1));
  for (size_t i = 0; i < size; ++i) floats[i] += static_cast<float>(i % 7);
  group.AllReduce(floats);
  size_t wrong = 0;
  for (size_t i = 0; i < size; ++i) {
    wrong += floats[i] != static_cast<float>(triangle + n * static_cast<int>(i % 7));
  }
  EXPECT_EQ(wrong, 0u) << size;
}

void CheckOtherReductions(ProcessGroup& group) {
  const int n = group.size(), mine = group.rank() + 1;
  std::vector<double> doubles = {0.5 * mine, -1.0 * mine};
  group.AllReduce(doubles, ReduceOp::kMax);
  EXPECT_EQ(doubles, (std::vector<double>{0.5 * n, -1}));
  std::vector<int64_t> whole = {mine, int64_t{1} << 40};
  group.AllReduce(whole, ReduceOp::kMin);
  EXPECT_EQ(whole, (std::vector<int64_t>{1, int64_t{1} << 40}));
  std::vector<float> bad = {mine == n ? std::numeric_limits<float>::quiet_NaN() : 1.0f};
  group.AllReduce(bad);
  EXPECT_TRUE(std::isnan(bad[0]));
}

void CheckCopies(ProcessGroup& group, size_t size) {
  const size_t n = static_cast<size_t>(group.size());
  std::vector<int32_t> part(size, group.rank()), all(size * n);
  part.back() = 10 * group.rank();
  group.AllGather(std::as_bytes(std::span(part)), std::as_writable_bytes(std::span(all)));
  for (size_t rank = 0; rank < n; ++rank) {
    EXPECT_EQ(all[size * rank], static_cast<int>(rank));
    EXPECT_EQ(all[size * (rank + 1) - 1], 10 * static_cast<int>(rank));
  }
  for (int root = 0; root < group.size(); ++root) {
    std::vector<int32_t> from(size, group.rank());
    group.Broadcast(std::as_writable_bytes(std::span(from)), root);
    EXPECT_TRUE(from == std::vector<int32_t>(size, root)) << size;
  }
}

}  // namespace

void CheckCollectives(ProcessGroup& group, size_t most) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, most}) CheckSumsOfFloats(group, size);
  CheckOtherReductions(group);
  for (const size_t size : {size_t{2}, most}) CheckCopies(group, size);
  group.Barrier();
  const std::vector<std::byte> some(8);
  EXPECT_THROW(group.Broadcast({}, group.size()), Error);
  EXPECT_THROW(group.AllGather(some, {}), Error);
  group.Barrier();  // the refused calls did no harm
}

}  // namespace lathe
