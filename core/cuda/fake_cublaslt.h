// A cuBLASLt and a device that are there on any machine, for tests of gemm.cc: memory is the
// host's, products are sums in a loop. To be linked instead of the real ones.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace lathe::cuda {

struct FakeCublasLt {
  // What there is.
  std::vector<float> milliseconds = {1};  // that each algorithm takes, the library's first first
  std::set<int> failing;                  // algorithms that don't run
  bool capturing = false;                 // the stream records
  bool heuristic_fails = false;
  bool checks_fail = false;
  // The epilogue that adds a bias is never there where m, n or k is 1, nor where A, B or D is less
  // aligned than this.
  uint32_t least_bias_alignment = 1;
  bool biases_fail = false;              // when they are computed
  bool has_bias_gradients = true;        // the epilogue
  bool bias_gradients_fail = false;      // when they are computed
  float bias_gradient_milliseconds = 0;  // that it takes longer
  float column_sums_milliseconds = 1;
  bool has_batches = true;
  float batch_milliseconds = 0;  // that they take longer than one product
  int64_t free_memory = int64_t{1} << 30;
  // What has been done.
  struct Product {
    int algorithm;
    cublasComputeType_t compute;
    cudaDataType_t type, d_type;
    uint64_t m, n, k;
    int32_t batch;
    bool bias, bias_gradient;  // the epilogue
    uint32_t reduction_schemes;
    bool in_place;  // on the D of the last call before
  };
  std::vector<Product> products;
  int column_sums = 0;                // calls of that kernel
  int added_rows = 0;                 // the same of the one that adds a bias
  int checks = 0;                     // of algorithms that were kept
  int heuristics = 0, requested = 0;  // calls, and algorithms asked for in the last
  int live = 0;                       // descriptors and events that were not destroyed
  std::vector<std::string> mistakes;  // calls that break the library's rules
};

// That of this process.
FakeCublasLt& Fake();

}  // namespace lathe::cuda
