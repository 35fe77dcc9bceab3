// A graph of operations for cuDNN's backend API, and plans made of it.
//
//   CudnnGraph graph(Cudnn());
//   const auto x = graph.Tensor(1, CUDNN_DATA_BFLOAT16, {...}, {...});
//   graph.Matmul(x, ...);
//   graph.Finalize(target);
//   cudnnBackendExecute(handle, graph.FirstPlan(target), variant_pack)
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/core/cuda/cudnn_library.h"

namespace lathe::cuda {

// What plans are for: a device that is there, or, without a GPU, the description of one.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t device = nullptr;  // of type DEVICEPROP; if there is no handle
};

// Descriptors that go together; they stay as long as this does. All calls throw Error with what
// cuDNN says.
class CudnnDescriptors {
 public:
  using Descriptor = cudnnBackendDescriptor_t;

  explicit CudnnDescriptors(const CudnnLibrary& cudnn) : cudnn_(cudnn) {}
  ~CudnnDescriptors();
  CudnnDescriptors(const CudnnDescriptors&) = delete;
  CudnnDescriptors& operator=(const CudnnDescriptors&) = delete;

  Descriptor New(cudnnBackendDescriptorType_t type);
  void Set(Descriptor of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           int64_t count, const void* values);
  // One value.
  void Set(Descriptor of, cudnnBackendAttributeName_t name, Descriptor value) {
    Set(of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
  }
  template <typename Value>
  void Set(Descriptor of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           const Value& value) {
    Set(of, name, type, 1, &value);
  }
  // How many of `most` values there are, which are written to `values`.
  int64_t Get(Descriptor of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
              int64_t most, void* values);
  void Finalize(Descriptor descriptor);

 protected:
  void Check(const char* call, cudnnStatus_t status) const;

  const CudnnLibrary& cudnn_;
  std::vector<Descriptor> descriptors_;
};

class CudnnGraph : public CudnnDescriptors {
 public:
  using Sizes = std::vector<int64_t>;

  explicit CudnnGraph(const CudnnLibrary& cudnn) : CudnnDescriptors(cudnn) {}

  // A matrix that the caller has, `id` in its variant pack. ragged: where each of the first
  // dimension begins, in elements.
  Descriptor Tensor(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                    Descriptor ragged = nullptr);
  // One that is nowhere in memory.
  Descriptor Virtual(cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                     Descriptor ragged = nullptr);
  // A float on the host.
  Descriptor Scalar(int64_t id);

  // y = mode(x, b), b where the mode has two operands; t: what BINARY_SELECT selects by.
  void Pointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Descriptor y,
                 cudnnDataType_t precision = CUDNN_DATA_FLOAT, Descriptor t = nullptr,
                 int64_t axis = -1);
  // c = a b in float32. m, n, k: how much of each matrix counts, int32 (batch); null: all.
  void Matmul(Descriptor a, Descriptor b, Descriptor c, Descriptor m, Descriptor n, Descriptor k);
  void Reduce(cudnnReduceTensorOp_t how, Descriptor x, Descriptor y);
  void Reshape(Descriptor x, Descriptor y);
  // 1 with probability `keep`, else 0.
  void Bernoulli(double keep, Descriptor seed, Descriptor offset, Descriptor y);

  // After the last operation.
  void Finalize(const CudnnTarget& target);
  int64_t num_operations() const { return static_cast<int64_t>(operations_.size()); }
  // The engines' configurations that the library proposes, its favourite first; they are of type
  // ENGINECFG.
  std::vector<Descriptor> Configs(const CudnnTarget& target);
  // A plan of the first of them that becomes one, its kernels compiled. Engines that the library
  // notes to be nondeterministic are passed over.
  Descriptor FirstPlan(const CudnnTarget& target);
  int64_t WorkspaceBytes(Descriptor plan);

 private:
  Descriptor Plan(Descriptor config, const CudnnTarget& target);
  bool IsDeterministic(Descriptor config);
  Descriptor AnyTensor(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                       Descriptor ragged, bool is_virtual, bool by_value);

  std::vector<Descriptor> operations_;
  Descriptor graph_ = nullptr;
  int64_t next_virtual_ = 1000;  // callers use smaller ids
};

}  // namespace lathe::cuda
