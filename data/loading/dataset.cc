#include "lathe/data/loading/dataset.h"

#include "lathe/core/base/philox.h"

namespace lathe {

std::string FingerprintOf(const void* data, size_t bytes) {
  return std::to_string(HashName({static_cast<const char*>(data), bytes}));
}

std::vector<int64_t> SizesOfParts(int64_t n, const std::vector<double>& shares) {
  double sum = 0;
  for (const double share : shares) {
    Check(share >= 0 && share <= 1, "random_split", "a share must be from 0 to 1 but is ", share);
    sum += share;
  }
  Check(std::fabs(sum - 1) < 1e-6, "random_split", "the shares must have the sum 1 but have ", sum);
  std::vector<int64_t> sizes;
  for (const double share : shares)
    sizes.push_back(static_cast<int64_t>(std::floor(static_cast<double>(n) * share)));
  int64_t left = n - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % sizes.size(), --left) ++sizes[i];
  return sizes;
}

void CheckParts(int64_t n, const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    Check(size >= 0, "random_split", "a size must not be negative but is ", size);
    sum += size;
  }
  Check(sum == n, "random_split", "the sizes have the sum ", sum, " but the data set has ", n,
        " samples");
}

}  // namespace lathe
