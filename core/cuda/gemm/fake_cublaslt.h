// A fake cuBLASLt and a fake device for tests of gemm.cc, which run on any machine. Memory is the
// host's, and products are sums in a loop. Tests link this instead of the real ones.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace lathe::cuda {

struct FakeCublasLt {
  // Settings that tests change.
  std::vector<float> milliseconds = {1};  // of each algorithm, in the library's order
  std::set<int> failing;                  // algorithms that don't run
  bool capturing = false;                 // the stream records work
  bool heuristic_fails = false;
  bool checks_fail = false;
  // There is no epilogue that adds a bias if m, n or k is 1. There is none either if A, B or D is
  // less aligned than this.
  uint32_t least_bias_alignment = 1;
  bool biases_fail = false;              // products that add a bias fail when they run
  bool has_bias_gradients = true;        // there is an epilogue for the gradient of a bias
  bool bias_gradients_fail = false;      // products with that epilogue fail when they run
  float bias_gradient_milliseconds = 0;  // what that epilogue takes in addition
  float column_sums_milliseconds = 1;
  bool has_batches = true;
  float batch_milliseconds = 0;  // what a batch of products takes in addition
  int64_t free_memory = int64_t{1} << 30;
  // Records of the calls.
  struct Product {
    int algorithm;
    cublasComputeType_t compute;
    cudaDataType_t type, d_type;
    uint64_t m, n, k;
    int32_t batch;
    bool bias, bias_gradient;  // whether the product had these epilogues
    uint32_t reduction_schemes;
    bool in_place;  // true if its D is that of the call before
  };
  std::vector<Product> products;
  int column_sums = 0;                // calls of the kernel that sums columns
  int added_rows = 0;                 // calls of the kernel that adds a bias
  int checks = 0;                     // calls that check an algorithm kept by an earlier process
  int heuristics = 0;                 // calls that ask for algorithms
  int requested = 0;                  // the number of algorithms that the last such call asked for
  int live = 0;                       // descriptors and events that were not destroyed
  std::vector<std::string> mistakes;  // calls that break the library's rules
  float clock_ms = 0;                 // the device's time, which products and kernels advance
};

// Returns the one fake of this process.
FakeCublasLt& Fake();

// Read and write element `at` of a matrix in float32, float16 or bfloat16.
float ReadElement(const void* from, cudaDataType_t type, int64_t at);
void WriteElement(void* to, cudaDataType_t type, int64_t at, float value);

}  // namespace lathe::cuda
