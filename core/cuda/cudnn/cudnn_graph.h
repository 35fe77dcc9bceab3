// A graph of operations for cuDNN's backend API, and the plans made from it.
//
//   CudnnGraph graph(Cudnn());
//   const auto x = graph.Tensor(1, CUDNN_DATA_BFLOAT16, {...}, {...});
//   graph.Matmul(x, ...);
//   graph.Finalize(target);
//   cudnnBackendExecute(handle, graph.FirstPlan(target), variant_pack)
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/core/cuda/cudnn/cudnn_library.h"

namespace lathe::cuda {

// The device that plans are made for: a real one or, without a GPU, the description of one.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t device = nullptr;  // of type DEVICEPROP; used if there is no handle
};

// A group of descriptors, which live as long as this object. All calls throw Error with cuDNN's
// explanation if they fail.
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
  // These two set a single value.
  void Set(Descriptor of, cudnnBackendAttributeName_t name, Descriptor value) {
    Set(of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
  }
  template <typename Value>
  void Set(Descriptor of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           const Value& value) {
    Set(of, name, type, 1, &value);
  }
  // Writes up to `most` values to `values`. Returns how many there are.
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

  // Describes a tensor in the caller's memory, which has `id` in the variant pack. If set, `ragged`
  // is the tensor of offsets, in elements, at which the entries of the first dimension begin.
  Descriptor Tensor(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                    Descriptor ragged = nullptr);
  // Describes an intermediate result, which exists nowhere in memory.
  Descriptor Virtual(cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                     Descriptor ragged = nullptr);
  // Describes a float on the host.
  Descriptor Scalar(int64_t id);

  // y = mode(x, b). b is null if the mode has one operand. t is the tensor by which BINARY_SELECT
  // selects.
  void Pointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Descriptor y,
                 cudnnDataType_t precision = CUDNN_DATA_FLOAT, Descriptor t = nullptr,
                 int64_t axis = -1);
  // c = a b in float32. m, n and k are int32 tensors of [batch] that say how much of each matrix
  // counts; null means all of it.
  void Matmul(Descriptor a, Descriptor b, Descriptor c, Descriptor m, Descriptor n, Descriptor k);
  void Reduce(cudnnReduceTensorOp_t how, Descriptor x, Descriptor y);
  void Reshape(Descriptor x, Descriptor y);
  // y = 1 with probability `keep`, else 0.
  void Bernoulli(double keep, Descriptor seed, Descriptor offset, Descriptor y);

  // Completes the graph. Called once, after the last operation.
  void Finalize(const CudnnTarget& target);
  int64_t num_operations() const { return static_cast<int64_t>(operations_.size()); }
  // Returns the engine configurations (of type ENGINECFG) that the library proposes, its favourite
  // first.
  std::vector<Descriptor> Configs(const CudnnTarget& target);
  // Compiles the kernels of the first configuration for which that works, and returns its plan.
  // Skips engines that the library marks as nondeterministic. Throws Error if there is no such
  // plan.
  Descriptor FirstPlan(const CudnnTarget& target);
  int64_t WorkspaceBytes(Descriptor plan);

 private:
  // Where a tensor's elements are: in the caller's memory on the device, nowhere, or in the call.
  enum class Memory { kDevice, kVirtual, kByValue };

  Descriptor Plan(Descriptor config, const CudnnTarget& target);
  bool IsDeterministic(Descriptor config);
  Descriptor AnyTensor(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                       Descriptor ragged, Memory memory);

  std::vector<Descriptor> operations_;
  Descriptor graph_ = nullptr;
  int64_t next_virtual_ = 1000;  // callers use smaller ids
};

}  // namespace lathe::cuda
