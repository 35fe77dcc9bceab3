// Tensor: a cheap handle to {storage, offset, shape, dtype, device, autograd record}.
//
// A tensor is always contiguous and row-major; ops that want a transpose take it as an argument.
// Copying a Tensor copies the handle. Views (Slice, Reshape) share the storage. A tensor may be
// *unallocated*: it has a shape and a dtype but no storage yet. Parameters are, before their values
// are loaded or drawn.
//
//   Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
//   Tensor y = Matmul(x, x);
//   float first = y.ToVector<float>()[0];
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/error.h"
#include "lathe/core/leaf_gradient.h"

namespace lathe {

// Sizes of the dimensions, outermost first; [] is a scalar. It is its own type so that it can be
// printed.
struct Shape : absl::InlinedVector<int64_t, 4> {
  using absl::InlinedVector<int64_t, 4>::InlinedVector;
};

std::string ToString(const Shape& shape);  // "[2, 3]"
int64_t NumElements(const Shape& shape);   // 1 for a scalar's shape []

// Bytes that tensors hold, each block rounded up as it is handed out. Free memory that is kept for
// later tensors doesn't count.
struct MemoryUse {
  int64_t now = 0, peak = 0;  // the peak since ResetPeakMemory or the program's start
};
MemoryUse TensorMemory(Device device = {});
void ResetPeakMemory(Device device = {});

// Bytes of a storage that another thread still fills, while other parts of it are in use already.
// All members may be called from any thread.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // Returns once the storage's bytes [begin, end) are there. Throws, each time, if some of them
  // don't come any more.
  virtual void Await(int64_t begin, int64_t end) = 0;
  // Returns once nothing comes any more, whether or not all is there. Does not throw.
  virtual void AwaitEnd() = 0;
  // Returns true once all is there.
  virtual bool complete() const = 0;
};

// A block of bytes on one device, 64-byte aligned. The last handle frees it.
class Storage {
 public:
  // `zeroed`: all bytes are 0; otherwise they hold whatever the last user left.
  static std::shared_ptr<Storage> Allocate(int64_t bytes, Device device, bool zeroed = false);
  virtual ~Storage() = default;
  // Hints that parts of these bytes may never be used, so that memory is taken only for parts in
  // use.
  virtual void ExpectSparseUse(int64_t /*offset*/, int64_t /*bytes*/) {}
  // Returns the number of bytes if this is host memory of whole pages that no other storage uses;
  // else 0. Only such memory can be shared. Its address never changes.
  virtual int64_t shareable_bytes() const { return 0; }
  // kOthersRead: other processes read this memory. kOthersReadAndWrite: they also write to it.
  enum class Sharing : uint8_t { kNone, kOthersRead, kOthersReadAndWrite };
  // Replaces the first `bytes` bytes by `pages`, which other processes map too. `pages` comes from
  // mmap, consists of whole pages, at most shareable_bytes() bytes, and has the same contents.
  virtual void MapShared(void* /*pages*/, int64_t /*bytes*/, Sharing /*sharing*/) {}
  // Makes the contents private to this process again, if they are shared, and ends the waits for
  // arrivals: whoever has called this may read what is there.
  virtual void Unshare() {}
  Sharing sharing() const { return sharing_; }
  // Returns true if what this process writes appears in others, and the other way round.
  bool is_writable_by_others() const { return sharing_ == Sharing::kOthersReadAndWrite; }
  // From now on Tensor::raw_data waits until the bytes of its tensor have come. Null: all are
  // there. Call it while no other thread uses the storage, but to fill it.
  void SetArrivals(std::shared_ptr<Arrivals> arrivals) { arrivals_ = std::move(arrivals); }
  const std::shared_ptr<Arrivals>& arrivals() const { return arrivals_; }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Returns the number of in-place changes. With it the backward pass notices that a saved tensor
  // was overwritten.
  int64_t version() const { return version_; }
  void BumpVersion() { ++version_; }

 protected:
  Storage(void* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  int64_t bytes_;
  int64_t version_ = 0;
  Sharing sharing_ = Sharing::kNone;
  std::shared_ptr<Arrivals> arrivals_;
};

struct Node;  // a recorded op, core/autograd.h

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;  // in elements
  Shape shape;
  DType dtype = DType::kF32;
  Device device;
  bool requires_grad = false;
  // A member of Tensor that records nothing made it, while gradients were recorded, from a tensor
  // that needs one. Ops refuse it.
  bool lacks_record = false;
  std::shared_ptr<Node> producer;  // the op that computed it, while gradients are recorded
  // A copy in a narrower dtype for products, and the storage version from which it was made
  // (core/ops/cast.h).
  std::shared_ptr<TensorImpl> low_precision;
  int64_t low_precision_version = -1;
  std::unique_ptr<LeafGradient> leaf_gradient;  // null: nothing is known of a gradient

  // Returns what is known of the gradient: the defaults of LeafGradient if there is nothing.
  const LeafGradient& gradient() const;
  // Does the same for changes. Makes the LeafGradient if there is none.
  LeafGradient& mutable_gradient();
};

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
  // These throw for an undefined tensor.
  const Shape& shape() const { return Checked().shape; }
  int64_t dim(int i) const;  // a negative i counts from the end
  int ndim() const { return static_cast<int>(shape().size()); }
  int64_t numel() const { return NumElements(shape()); }
  DType dtype() const { return Checked().dtype; }
  Device device() const { return Checked().device; }
  int64_t bytes() const { return numel() * SizeOf(dtype()); }

  // The address of the elements, on the tensor's device: only kernels can use it if that is not the
  // host. Throws if T is not the tensor's dtype or if the tensor is unallocated. Waits for elements
  // that still come from other ranks, and throws if they don't come. Code that writes into a
  // parameter through it must call impl()->storage->BumpVersion(), or bfloat16 products keep using
  // the old values.
  template <typename T>
  T* data() const {
    CheckDType(DTypeOf<T>::value);
    return static_cast<T*>(raw_data());
  }
  void* raw_data() const;
  // The elements of a host tensor; throws for other devices.
  template <typename T>
  std::span<T> values() const {
    CheckOnHost();
    return {data<T>(), static_cast<size_t>(numel())};
  }
  // Returns a copy of the elements, from any device.
  template <typename T>
  std::vector<T> ToVector() const;
  // Returns the only element as a double, whatever the dtype and the device.
  double Item() const;

  // These record no gradient. The ops Reshape (core/ops/shape.h), Slice (core/ops/shaping/concat.h)
  // and Cast (core/ops/cast.h) do. If this tensor needs a gradient, ops throw FailedPrecondition
  // for the result: otherwise the gradient would be cut off in silence. That doesn't hold under
  // NoGradGuard, and not after Detach(), by which the caller says that no gradient is wanted.
  Tensor Slice(int64_t begin, int64_t end) const;  // rows [begin, end) of dimension 0; a view
  Tensor Reshape(Shape shape) const;               // one size may be -1 and is computed; a view
  Tensor Clone() const;                            // own storage
  Tensor To(DType dtype) const;                    // converts; returns itself if it has the dtype
  Tensor To(Device device) const;                  // copies; returns itself if it is there
  Tensor Detach() const;                           // same storage, needs no gradient
  void Fill(double value);
  void CopyFrom(const Tensor& other);  // same shape; converts dtypes; any devices

  // Autograd. A leaf that requires a gradient collects it; grad() reads it.
  bool requires_grad() const { return impl_ != nullptr && impl_->requires_grad; }
  Tensor& SetRequiresGrad(bool value);
  bool is_leaf() const { return Checked().producer == nullptr; }
  // Returns the gradient, for reading; undefined if there is none or if it was zeroed. Changes
  // nothing about the leaf. While a factor of ClipGradNorm is not applied, this is a copy that is
  // multiplied by it. If reading applied the factor to the buffer, the last bits of a GPU's next
  // update could change. MaterializeGrad() applies it without a copy. The handle is valid until
  // the next backward pass, ZeroGrad or ClipGradNorm.
  // Throws if ranks divide the optimizer's work and this rank holds only a part of the gradient
  // (AcceleratorOptions::shard_optimizer).
  const Tensor grad() const;
  // Returns the gradient's own buffer, for writing. Allocates it with zeros if there is none,
  // clears it if it was zeroed, and applies the factors of ClipGradNorm. Throws as grad() does.
  Tensor MaterializeGrad();
  void SetGrad(const Tensor& grad);

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }

 private:
  const TensorImpl& Checked() const {
    if (impl_ == nullptr) ThrowUndefined();
    return *impl_;
  }
  [[noreturn]] static void ThrowUndefined();
  void CheckDType(DType dtype) const;
  void CheckOnHost() const;
  void CopyAcrossDevices(const Tensor& other);
  Tensor WithoutRecord(Tensor result) const;
  std::shared_ptr<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace lathe
