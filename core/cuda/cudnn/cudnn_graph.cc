#include "lathe/core/cuda/cudnn/cudnn_graph.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>

#include "lathe/core/base/error.h"

namespace lathe::cuda {

CudnnDescriptors::~CudnnDescriptors() {
  // Later descriptors refer to earlier ones, so they are destroyed in reverse.
  while (!descriptors_.empty()) {
    cudnn_.BackendDestroyDescriptor(descriptors_.back());
    descriptors_.pop_back();
  }
}

void CudnnDescriptors::Check(const char* call, cudnnStatus_t status) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> more = {};
  cudnn_.GetLastErrorString(more.data(), more.size() - 1);
  std::string line = more.data();
  std::replace(line.begin(), line.end(), '\n', ' ');
  throw Error(absl::StatusCode::kUnimplemented,
              absl::StrCat("[cuda] ", call, ": ", cudnn_.GetErrorString(status),
                           line.empty() ? "" : ": ", line));
}

CudnnDescriptors::Descriptor CudnnDescriptors::New(cudnnBackendDescriptorType_t type) {
  Descriptor made = nullptr;
  Check("cudnnBackendCreateDescriptor", cudnn_.BackendCreateDescriptor(type, &made));
  descriptors_.push_back(made);
  return made;
}

void CudnnDescriptors::Set(Descriptor of, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Check("cudnnBackendSetAttribute", cudnn_.BackendSetAttribute(of, name, type, count, values));
}

int64_t CudnnDescriptors::Get(Descriptor of, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int64_t most, void* values) {
  int64_t count = 0;
  Check("cudnnBackendGetAttribute",
        cudnn_.BackendGetAttribute(of, name, type, most, &count, values));
  return count;
}

void CudnnDescriptors::Finalize(Descriptor descriptor) {
  Check("cudnnBackendFinalize", cudnn_.BackendFinalize(descriptor));
}

CudnnGraph::Descriptor CudnnGraph::AnyTensor(int64_t id, cudnnDataType_t type, const Sizes& sizes,
                                             const Sizes& strides, Descriptor ragged,
                                             Memory memory) {
  constexpr int64_t kAlignment = 16;  // bytes
  const Descriptor tensor = New(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  Set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  Set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::ssize(sizes), sizes.data());
  Set(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::ssize(strides), strides.data());
  Set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  constexpr bool kTrue = true;
  if (memory == Memory::kVirtual) {
    Set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kTrue);
  }
  if (memory == Memory::kByValue) {
    Set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kTrue);
  }
  if (ragged != nullptr) Set(tensor, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged);
  CudnnDescriptors::Finalize(tensor);
  return tensor;
}

CudnnGraph::Descriptor CudnnGraph::Tensor(int64_t id, cudnnDataType_t type, const Sizes& sizes,
                                          const Sizes& strides, Descriptor ragged) {
  return AnyTensor(id, type, sizes, strides, ragged, Memory::kDevice);
}

CudnnGraph::Descriptor CudnnGraph::Virtual(cudnnDataType_t type, const Sizes& sizes,
                                           const Sizes& strides, Descriptor ragged) {
  return AnyTensor(next_virtual_++, type, sizes, strides, ragged, Memory::kVirtual);
}

CudnnGraph::Descriptor CudnnGraph::Scalar(int64_t id) {
  return AnyTensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, nullptr, Memory::kByValue);
}

void CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Descriptor y,
                           cudnnDataType_t precision, Descriptor t, int64_t axis) {
  const Descriptor how = New(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  Set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  Set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
  if (axis >= 0) Set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  CudnnDescriptors::Finalize(how);
  const Descriptor operation = New(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b != nullptr) Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t != nullptr) Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  CudnnDescriptors::Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraph::Matmul(Descriptor a, Descriptor b, Descriptor c, Descriptor m, Descriptor n,
                        Descriptor k) {
  const Descriptor how = New(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  Set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  CudnnDescriptors::Finalize(how);
  const Descriptor operation = New(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  if (m != nullptr) Set(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
  if (n != nullptr) Set(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
  if (k != nullptr) Set(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
  CudnnDescriptors::Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraph::Reduce(cudnnReduceTensorOp_t how, Descriptor x, Descriptor y) {
  const Descriptor reduction = New(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  Set(reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
  Set(reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  CudnnDescriptors::Finalize(reduction);
  const Descriptor operation = New(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  CudnnDescriptors::Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraph::Reshape(Descriptor x, Descriptor y) {
  const Descriptor operation = New(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  CudnnDescriptors::Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraph::Bernoulli(double keep, Descriptor seed, Descriptor offset, Descriptor y) {
  const Descriptor how = New(CUDNN_BACKEND_RNG_DESCRIPTOR);
  Set(how, CUDNN_ATTR_RNG_DISTRIBUTION, CUDNN_TYPE_RNG_DISTRIBUTION,
      CUDNN_RNG_DISTRIBUTION_BERNOULLI);
  Set(how, CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY, CUDNN_TYPE_DOUBLE, keep);
  CudnnDescriptors::Finalize(how);
  const Descriptor operation = New(CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_RNG_DESC, how);
  Set(operation, CUDNN_ATTR_OPERATION_RNG_SEED, seed);
  Set(operation, CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC, offset);
  Set(operation, CUDNN_ATTR_OPERATION_RNG_YDESC, y);
  CudnnDescriptors::Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraph::Finalize(const CudnnTarget& target) {
  graph_ = New(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  Set(graph_, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, num_operations(),
      operations_.data());
  if (target.handle != nullptr) {
    Set(graph_, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  CudnnDescriptors::Finalize(graph_);
}

std::vector<CudnnGraph::Descriptor> CudnnGraph::Configs(const CudnnTarget& target) {
  const Descriptor heuristics = New(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  Set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  Set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (target.device != nullptr) Set(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.device);
  CudnnDescriptors::Finalize(heuristics);
  const int64_t count =
      Get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<Descriptor> configs(static_cast<size_t>(count));
  for (Descriptor& config : configs) config = New(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  configs.resize(static_cast<size_t>(Get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, count, configs.data())));
  return configs;
}

bool CudnnGraph::IsDeterministic(Descriptor config) {
  Descriptor engine = New(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  Get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  const int64_t count = Get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                            std::ssize(notes), notes.data());
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ==
         notes.begin() + count;
}

CudnnGraph::Descriptor CudnnGraph::Plan(Descriptor config, const CudnnTarget& target) {
  const Descriptor plan = New(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  Set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (target.handle != nullptr) {
    Set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  } else {
    Set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.device);
  }
  CudnnDescriptors::Finalize(plan);
  return plan;
}

CudnnGraph::Descriptor CudnnGraph::FirstPlan(const CudnnTarget& target) {
  std::string problem = "[cuda] cuDNN proposes no engine";
  for (const Descriptor config : Configs(target)) {
    try {
      if (IsDeterministic(config)) return Plan(config, target);
      problem = "[cuda] the engine that cuDNN proposes is nondeterministic";
    } catch (const Error& e) {
      problem = e.message();
    }
  }
  throw Error(absl::StatusCode::kUnimplemented, problem);
}

int64_t CudnnGraph::WorkspaceBytes(Descriptor plan) {
  int64_t bytes = 0;
  Get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
  return bytes;
}

}  // namespace lathe::cuda
