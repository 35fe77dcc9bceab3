// Tensor: a cheap handle to {storage, offset, shape, dtype, device, autograd record}.
//
// Always contiguous and row-major; ops that want a transpose take it as an argument. Copying a
// Tensor copies the handle. Views (Slice, Reshape) share the storage. A tensor may be
// *unallocated*: it has a shape and a dtype but no storage yet (parameters before their values are
// loaded or drawn).
//
//   Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
//   Tensor y = Matmul(x, x);
//   float first = y.ToVector<float>()[0];
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/dtype.h"
#include "lathe/core/error.h"

namespace lathe {

// Sizes of the dimensions, outermost first; [] is a scalar. A type of its own so that it prints.
struct Shape : absl::InlinedVector<int64_t, 4> {
  using absl::InlinedVector<int64_t, 4>::InlinedVector;
};

std::string ToString(const Shape& shape);  // "[2, 3]"
int64_t NumElements(const Shape& shape);   // 1 for a scalar's shape []

// Bytes that tensors hold, rounded up as they are handed out, without what is kept for later ones.
struct MemoryUse {
  int64_t now = 0, peak = 0;  // the peak since ResetPeakMemory, or since the program began
};
MemoryUse TensorMemory(Device device = {});
void ResetPeakMemory(Device device = {});

// A block of bytes on one device, 64-byte aligned. The last handle frees it.
class Storage {
 public:
  // `zeroed`: all bytes are 0; otherwise they are whatever the last user left.
  static std::shared_ptr<Storage> Allocate(int64_t bytes, Device device, bool zeroed = false);
  virtual ~Storage() = default;
  // Parts of these bytes may never be used: memory should be taken for what is, not for more.
  virtual void ExpectSparseUse(int64_t /*offset*/, int64_t /*bytes*/) {}
  // What follows is for host memory of whole pages that only this storage uses: of so many bytes;
  // 0: it isn't. Its address stays.
  virtual int64_t whole_pages() const { return 0; }
  enum class Sharing : uint8_t { kNone, kReadByOthers, kInCommon };
  // `pages`, an mmap of so many bytes (whole pages, no more than there are) with the same contents,
  // take the place of the first ones. They are memory that other processes map, too.
  virtual void Share(void* /*pages*/, int64_t /*bytes*/, Sharing /*sharing*/) {}
  // The contents are this process's own again. Nothing if they are.
  virtual void Unshare() {}
  Sharing sharing() const { return sharing_; }
  // What other processes write, this one has, and the other way round.
  bool is_shared() const { return sharing_ == Sharing::kInCommon; }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Counts in-place changes, so that the backward pass notices a saved tensor that was overwritten.
  int64_t version() const { return version_; }
  void BumpVersion() { ++version_; }

 protected:
  Storage(void* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  int64_t bytes_;
  int64_t version_ = 0;
  Sharing sharing_ = Sharing::kNone;
};

struct Node;  // a recorded operation, core/autograd.h

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;  // in elements
  Shape shape;
  DType dtype = DType::kF32;
  Device device;
  bool requires_grad = false;
  std::shared_ptr<Node> producer;  // the op that made it, while gradients are recorded
  std::shared_ptr<TensorImpl> grad;
  // Zeroing a gradient only sets this: it counts as 0 whatever its buffer holds, and who writes
  // first overwrites. Tensor::grad() clears the buffer, so that nobody else sees the difference.
  bool grad_is_stale = false;
  // Clipping only sets this: the gradient is what its buffer holds times this. Tensor::grad() does
  // the multiplication.
  float grad_scale = 1;
  // A factor besides, on the gradient's device: [] float32; null: 1.
  std::shared_ptr<TensorImpl> device_grad_scale;
  // If set, the buffer has only a part of the gradient that is right, and Tensor::grad() throws,
  // with this hint. Who changes the whole gradient resets it.
  const char* partial_grad_hint = nullptr;
  // If given, all rows of the gradient's buffer but these are 0; ascending, each once.
  std::optional<std::vector<int32_t>> grad_rows;
  // A copy in a narrower dtype for products, and the storage's version that it was made of
  // (core/ops/cast.h).
  std::shared_ptr<TensorImpl> low_precision;
  int64_t low_precision_version = -1;
  // Called once in each backward pass, when a leaf's gradient has received all its parts; each
  // Checkpoint is a pass of its own.
  std::function<void()> on_grad_ready;
};

// Makes the gradient of a leaf 0 if it is stale.
void ClearStaleGrad(TensorImpl& leaf);
// Multiplies what the gradient's buffer holds by its factors, which become 1.
void ApplyGradScale(TensorImpl& leaf);

class Tensor {
 public:
  Tensor() = default;  // undefined
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  static Tensor Unallocated(Shape shape, DType dtype = DType::kF32, Device device = {});
  static Tensor Empty(Shape shape, DType dtype = DType::kF32, Device device = {});
  static Tensor Zeros(Shape shape, DType dtype = DType::kF32, Device device = {});
  static Tensor Full(Shape shape, double value, DType dtype = DType::kF32, Device device = {});
  template <typename T>
  static Tensor FromVector(const std::vector<T>& values, Shape shape);
  template <typename T>
  static Tensor FromVector(const std::vector<T>& values) {
    return FromVector(values, {static_cast<int64_t>(values.size())});
  }

  bool defined() const { return impl_ != nullptr; }
  bool allocated() const { return impl_ != nullptr && impl_->storage != nullptr; }
  const Shape& shape() const { return impl_->shape; }
  int64_t dim(int i) const;  // negative counts from the end
  int ndim() const { return static_cast<int>(impl_->shape.size()); }
  int64_t numel() const { return NumElements(impl_->shape); }
  DType dtype() const { return impl_->dtype; }
  Device device() const { return impl_->device; }
  int64_t bytes() const { return numel() * SizeOf(dtype()); }

  // Where the elements lie, on the tensor's device: what is not the host's is for kernels alone.
  // Throws if T is not the tensor's dtype or it is unallocated.
  // Who writes through it into a parameter says so with impl()->storage->BumpVersion(), or bfloat16
  // products go on with the old values.
  template <typename T>
  T* data() const {
    CheckDType(DTypeOf<T>::value);
    return static_cast<T*>(raw_data());
  }
  void* raw_data() const;
  // The elements; host tensors only.
  template <typename T>
  std::span<T> values() const {
    CheckOnHost();
    return {data<T>(), static_cast<size_t>(numel())};
  }
  // A copy of the elements, from any device.
  template <typename T>
  std::vector<T> ToVector() const;
  // The one element as a double, whatever the dtype and the device.
  double Item() const;

  // Rows [begin, end) of the leading dimension. Differentiable views are ops (core/ops/shape.h).
  Tensor Slice(int64_t begin, int64_t end) const;
  Tensor Reshape(Shape shape) const;  // one -1 is worked out
  Tensor Clone() const;               // own storage, no autograd record
  Tensor To(DType dtype) const;       // converts; itself if it has the dtype. No autograd record.
  Tensor To(Device device) const;     // copies; itself if it is there. No autograd record.
  Tensor Detach() const;              // same storage, no autograd record
  void Fill(double value);
  void CopyFrom(const Tensor& other);  // same shape; converts dtypes, any devices

  // Autograd. A leaf that requires a gradient collects it in grad().
  bool requires_grad() const { return impl_ != nullptr && impl_->requires_grad; }
  Tensor& SetRequiresGrad(bool value);
  bool is_leaf() const { return impl_->producer == nullptr; }
  // A handle serves until the optimizer's ZeroGrad or ClipGradNorm; ask anew after them.
  // Undefined if there is none. Throws where several processes share out the optimizer's work and
  // this one has a part only (AcceleratorOptions::shard_optimizer).
  Tensor grad() const;
  void SetGrad(const Tensor& grad);

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }

 private:
  void CheckDType(DType dtype) const;
  void CheckOnHost() const;
  void CopyAcrossDevices(const Tensor& other);
  std::shared_ptr<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace lathe
