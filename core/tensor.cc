#include "lathe/core/tensor.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstring>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/check_holds.h"
#include "lathe/core/cpu/convert.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"

namespace lathe {
std::string ToString(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << ToString(shape); }

int64_t NumElements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

namespace {

// Throws for negative sizes and for so many elements that a size in bytes could overflow.
void CheckShape(const Shape& shape) {
  constexpr int64_t kMostElements = int64_t{1} << 56;  // far more than any memory
  for (int64_t d : shape) Check(d >= 0, "tensor", "shape ", shape, " has a negative size");
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  int64_t n = 1;
  for (int64_t d : shape) {
    Check(!__builtin_mul_overflow(n, d, &n) && n <= kMostElements, "tensor", "shape ", shape,
          " has more elements than any memory can hold");
  }
}

}  // namespace

Tensor Tensor::Unallocated(Shape shape, DType dtype, Device device) {
  CheckShape(shape);
  auto impl = std::make_shared<TensorImpl>();
  impl->shape = std::move(shape);
  impl->dtype = dtype;
  impl->device = device;
  return Tensor(std::move(impl));
}

Tensor Tensor::Empty(Shape shape, DType dtype, Device device) {
  Tensor t = Unallocated(std::move(shape), dtype, device);
  t.impl_->storage = Storage::Allocate(t.bytes(), device);
  return t;
}

Tensor Tensor::Zeros(Shape shape, DType dtype, Device device) {
  Tensor t = Unallocated(std::move(shape), dtype, device);
  t.impl_->storage = Storage::Allocate(t.bytes(), device, /*zeroed=*/true);
  return t;
}

Tensor Tensor::Full(Shape shape, double value, DType dtype, Device device) {
  CheckHolds("full", value, dtype);
  Tensor t = Empty(std::move(shape), dtype, device);
  t.Fill(value);
  return t;
}

template <typename T>
Tensor Tensor::FromVector(const std::vector<T>& values, Shape shape) {
  Tensor t = Empty(std::move(shape), DTypeOf<T>::value);
  Check(t.numel() == static_cast<int64_t>(values.size()), "tensor", "expected ", t.numel(),
        " values for shape ", t.shape(), " but got ", values.size());
  std::copy(values.begin(), values.end(), t.data<T>());
  return t;
}

int64_t Tensor::dim(int i) const {
  const int n = ndim();
  Check(i >= -n && i < n, "tensor", "shape ", shape(), " has no dimension ", i);
  return shape()[i < 0 ? i + n : i];
}

void Tensor::ThrowUndefined() {
  throw InvalidArgument("[tensor] the tensor is undefined",
                        "give it a value first; grad() is undefined before the backward pass");
}

void* Tensor::raw_data() const {
  if (Checked().storage == nullptr) {
    throw InvalidArgument(
        "[tensor] the tensor of shape " + lathe::ToString(shape()) + " has no values yet",
        "initialise or load the module; it has the parts only that it registers");
  }
  const int64_t begin = impl_->offset * SizeOf(impl_->dtype);
  if (const auto& arrivals = impl_->storage->arrivals(); arrivals != nullptr)
    arrivals->Await(begin, begin + bytes());
  return static_cast<char*>(impl_->storage->data()) + begin;
}

void Tensor::CheckDType(DType wanted) const {
  const DType own = dtype();
  Check(wanted == own, "tensor", "expected ", lathe::ToString(wanted), " but got ",
        lathe::ToString(own));
}

void Tensor::CheckOnHost() const {
  Check(defined(), "tensor", "the tensor is undefined");
  Check(impl_->device.is_cpu(), "tensor", "the host can't read a tensor on ",
        lathe::ToString(impl_->device), "; copy it with To(Device{}) or ToVector()");
}

template <typename T>
std::vector<T> Tensor::ToVector() const {
  Check(defined(), "tensor", "the tensor is undefined");
  if (!device().is_cpu()) return To(Device{}).ToVector<T>();
  const std::span<T> span = values<T>();
  return std::vector<T>(span.begin(), span.end());
}

#define LATHE_INSTANTIATE(T)                                           \
  template Tensor Tensor::FromVector<T>(const std::vector<T>&, Shape); \
  template std::vector<T> Tensor::ToVector<T>() const;
LATHE_INSTANTIATE(float)
LATHE_INSTANTIATE(BFloat16)
LATHE_INSTANTIATE(Float16)
LATHE_INSTANTIATE(double)
LATHE_INSTANTIATE(int64_t)
LATHE_INSTANTIATE(int32_t)
LATHE_INSTANTIATE(uint8_t)
#undef LATHE_INSTANTIATE

double Tensor::Item() const {
  Check(defined(), "tensor", "the tensor is undefined");
  Check(numel() == 1, "tensor", "Item() needs one element but the shape is ", shape());
  if (!device().is_cpu()) return To(Device{}).Item();
  return DispatchAll(dtype(), [&](auto tag) {
    return static_cast<double>(*static_cast<const decltype(tag)*>(raw_data()));
  });
}

// Marks what a member has made of this tensor if the gradient would be missed.
Tensor Tensor::WithoutRecord(Tensor result) const {
  result.impl_->lacks_record = (requires_grad() || impl_->lacks_record) && GradEnabled();
  return result;
}

Tensor Tensor::Slice(int64_t begin, int64_t end) const {
  Check(ndim() >= 1 && 0 <= begin && begin <= end && end <= dim(0), "slice", "rows ", begin, " to ",
        end, " don't exist in shape ", shape());
  auto view = std::make_shared<TensorImpl>();
  view->storage = impl_->storage;
  view->shape = shape();
  view->shape[0] = end - begin;
  view->dtype = dtype();
  view->device = device();
  view->offset = impl_->offset + (dim(0) == 0 ? 0 : begin * (numel() / dim(0)));
  return WithoutRecord(Tensor(std::move(view)));
}

Tensor Tensor::Reshape(Shape new_shape) const {
  const Shape wanted = new_shape;
  const auto unknown = std::find(new_shape.begin(), new_shape.end(), -1);
  if (unknown != new_shape.end()) {
    *unknown = 1;
    CheckShape(new_shape);
    const int64_t known = NumElements(new_shape);
    Check(known > 0 && numel() % known == 0, "reshape", shape(), " to ", wanted);
    *unknown = numel() / known;
  }
  CheckShape(new_shape);
  Check(NumElements(new_shape) == numel(), "reshape", shape(), " to ", new_shape);
  Tensor view = Detach();
  view.impl_->shape = std::move(new_shape);
  return WithoutRecord(std::move(view));
}

Tensor Tensor::Detach() const {
  const TensorImpl& own = Checked();
  auto view = std::make_shared<TensorImpl>();
  view->storage = own.storage;
  view->offset = own.offset;
  view->shape = own.shape;
  view->dtype = own.dtype;
  view->device = own.device;
  return Tensor(std::move(view));
}

Tensor Tensor::Clone() const {
  Tensor copy = Empty(shape(), dtype(), device());
  copy.CopyFrom(*this);
  return WithoutRecord(std::move(copy));
}

Tensor Tensor::To(DType wanted) const {
  if (wanted == dtype()) return *this;
  Tensor out = Empty(shape(), wanted, device());
  out.CopyFrom(*this);
  return WithoutRecord(std::move(out));
}

Tensor Tensor::To(Device wanted) const {
  if (wanted == device()) return *this;
  Tensor out = Empty(shape(), dtype(), wanted);
  out.CopyFrom(*this);
  return WithoutRecord(std::move(out));
}

namespace {
constexpr int64_t kAtOnce = 16384;  // elements that a thread takes at a time
}

void Tensor::Fill(double value) {
  if (!IsFloating(dtype())) CheckHolds("fill", value, dtype());
  if (!device().is_cpu()) {
    if (numel() > 0) DeviceKernels<TensorKernels>().fill(raw_data(), dtype(), value, numel());
    return impl_->storage->BumpVersion();
  }
  DispatchAll(dtype(), [&](auto tag) {
    using T = decltype(tag);
    T converted;
    if constexpr (std::is_arithmetic_v<T>) {
      converted = static_cast<T>(value);
    } else {
      converted = T(static_cast<float>(value));
    }
    T* out = static_cast<T*>(raw_data());
    const auto fill = [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] = converted;
    };
    const int64_t n = numel();
    if (n <= kAtOnce) return fill(0, n);  // without the cost of a parallel region
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += kAtOnce) fill(i, std::min(n, i + kAtOnce));
  });
  impl_->storage->BumpVersion();
}

void Tensor::CopyAcrossDevices(const Tensor& other) {
  if (numel() == 0) return;
  if (device() == other.device() && dtype() != other.dtype()) {
    return DeviceKernels<TensorKernels>().convert(raw_data(), dtype(), other.raw_data(),
                                                  other.dtype(), numel());
  }
  if (dtype() != other.dtype()) return CopyFrom(other.To(dtype()));
  if (device().is_cpu()) {
    BackendOf(other.device()).CopyToHost(raw_data(), other.raw_data(), bytes());
  } else if (other.device().is_cpu()) {
    BackendOf(device()).CopyToDevice(raw_data(), other.raw_data(), bytes());
  } else {
    Check(device() == other.device(), "copy", "can't copy from ", lathe::ToString(other.device()),
          " to ", lathe::ToString(device()), ": a process uses only one device");
    BackendOf(device()).CopyOnDevice(raw_data(), other.raw_data(), bytes());
  }
}

void Tensor::CopyFrom(const Tensor& other) {
  Check(shape() == other.shape(), "copy", "expected shape ", shape(), " but got ", other.shape());
  if (!device().is_cpu() || !other.device().is_cpu()) {
    CopyAcrossDevices(other);
  } else if (dtype() == other.dtype()) {
    std::memcpy(raw_data(), other.raw_data(), static_cast<size_t>(bytes()));
  } else if (dtype() == DType::kBF16 && other.dtype() == DType::kF32) {
    cpu::Kernels<cpu::ConvertKernels>().to_bf16(data<BFloat16>(), other.data<float>(), numel());
  } else if (dtype() == DType::kF32 && other.dtype() == DType::kBF16) {
    cpu::Kernels<cpu::ConvertKernels>().to_f32(data<float>(), other.data<BFloat16>(), numel());
  } else {
    DispatchAll(dtype(), [&](auto to) {
      DispatchAll(other.dtype(), [&](auto from) {
        using To = decltype(to);
        using From = decltype(from);
        To* out = static_cast<To*>(raw_data());
        const From* in = static_cast<const From*>(other.raw_data());
        const int64_t n = numel();
#pragma omp parallel for simd schedule(static) if (parallel : n > kAtOnce)
        for (int64_t i = 0; i < n; ++i) {
          if constexpr (std::is_arithmetic_v<To> && std::is_arithmetic_v<From>) {
            out[i] = static_cast<To>(in[i]);
          } else if constexpr (std::is_arithmetic_v<To>) {
            out[i] = static_cast<To>(static_cast<float>(in[i]));
          } else {
            out[i] = To(static_cast<float>(in[i]));
          }
        }
      });
    });
  }
  impl_->storage->BumpVersion();
}

const LeafGradient& TensorImpl::gradient() const {
  static const LeafGradient none;
  return leaf_gradient == nullptr ? none : *leaf_gradient;
}

LeafGradient& TensorImpl::mutable_gradient() {
  if (leaf_gradient == nullptr) leaf_gradient = std::make_unique<LeafGradient>();
  return *leaf_gradient;
}

void ClearStaleGrad(LeafGradient& gradient) {
  if (!std::exchange(gradient.is_stale, false)) return;
  Tensor buffer(gradient.buffer);
  if (gradient.rows) {
    for (const int32_t row : *gradient.rows) buffer.Slice(row, row + 1).Fill(0);
  } else {
    buffer.Fill(0);
  }
  // Without elements or dimensions there are no rows to know of.
  if (buffer.ndim() > 0 && buffer.numel() > 0) gradient.rows.emplace();
}

namespace {

// Multiplies `grad` by `scale` and by `device_scale`, which counts as 1 if it is null.
void Multiply(const Tensor& grad, float scale, const std::shared_ptr<TensorImpl>& device_scale) {
  if (scale == 1 && device_scale == nullptr) return;
  if (!grad.device().is_cpu()) {
    const auto& kernels = DeviceKernels<TensorKernels>();
    if (scale != 1) kernels.scale(grad.raw_data(), grad.dtype(), scale, grad.numel());
    if (device_scale == nullptr) return;
    kernels.scale_by(grad.raw_data(), grad.dtype(), Tensor(device_scale).data<float>(),
                     grad.numel());
    return;
  }
  DispatchFloat(grad.dtype(), "grad", [&](auto tag) {
    using T = decltype(tag);
    for (T& g : grad.values<T>()) g *= static_cast<T>(scale);
  });
}

void CheckIsWhole(const LeafGradient& gradient) {
  if (gradient.partial_hint == nullptr) return;
  throw Error(absl::StatusCode::kFailedPrecondition,
              "[grad] this process holds only its part of the gradient", gradient.partial_hint);
}

}  // namespace

void ApplyGradScale(LeafGradient& gradient) {
  const float scale = std::exchange(gradient.scale, 1.0f);
  const auto device_scale = std::exchange(gradient.device_scale, nullptr);
  Multiply(Tensor(gradient.buffer), scale, device_scale);
}

const Tensor Tensor::grad() const {
  const LeafGradient& gradient = Checked().gradient();
  CheckIsWhole(gradient);
  if (gradient.buffer == nullptr || gradient.is_stale) return {};
  const Tensor buffer(gradient.buffer);
  if (gradient.scale == 1 && gradient.device_scale == nullptr) return buffer;
  const Tensor copy = buffer.Clone();
  Multiply(copy, gradient.scale, gradient.device_scale);
  return copy;
}

Tensor Tensor::MaterializeGrad() {
  Checked();
  LeafGradient& gradient = impl_->mutable_gradient();
  CheckIsWhole(gradient);
  if (gradient.buffer == nullptr) {
    const LeafMemoryScope scope(*impl_);
    const AllocationTag allocation_tag = AllocationTag::State("gradients");
    SetGrad(Zeros(shape(), dtype(), device()));
  }
  ClearStaleGrad(gradient);
  ApplyGradScale(gradient);
  gradient.rows.reset();  // the caller may write anywhere
  return Tensor(gradient.buffer);
}

void Tensor::SetGrad(const Tensor& grad) {
  Checked();
  LeafGradient& gradient = impl_->mutable_gradient();
  gradient.buffer = grad.impl_;
  gradient.is_stale = false;
  gradient.scale = 1;
  gradient.device_scale = nullptr;
  gradient.partial_hint = nullptr;
  gradient.rows.reset();
}

Tensor& Tensor::SetRequiresGrad(bool value) {
  Check(!value || IsFloating(dtype()), "autograd",
        "only floating-point tensors can have gradients, not ", lathe::ToString(dtype()));
  impl_->requires_grad = value;
  impl_->lacks_record = false;
  return *this;
}

}  // namespace lathe
