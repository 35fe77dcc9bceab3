#include "lathe/data/datasets/device_batch.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/losses.h"

namespace lathe {
namespace {

DType LabelDType(const Tensor& labels) {
  return labels.dtype() == DType::kI32 ? DType::kI64 : labels.dtype();
}

// Returns the shape of the labels of S sequences.
Shape LabelShape(const Tensor& labels, int64_t S) {
  Shape shape = labels.shape();
  shape[0] = S;
  return shape;
}

// The byte of the buffer at which each tensor begins.
struct Places {
  int64_t labels, input_ids, token_type_ids, row_positions, row_samples, cu_seqlens, sample_ids,
      first_positions, num_sequences, step, grad_seed, sample_weights, encoded, end;

  Places(const Batch& batch, const PackedShape& shape) {
    int64_t at = 0;
    const auto next = [&](int64_t elements, DType dtype = DType::kI32) {
      return std::exchange(at, at + elements * SizeOf(dtype));
    };
    const int64_t S = shape.sequences;
    // Elements of 8 bytes come first, so that all are aligned.
    labels = !batch.labels.defined()
                 ? 0
                 : next(NumElements(LabelShape(batch.labels, S)), LabelDType(batch.labels));
    input_ids = next(shape.rows);
    token_type_ids = next(shape.rows);
    row_positions = next(shape.rows);
    row_samples = next(shape.rows);
    cu_seqlens = next(S + 1);
    sample_ids = next(S);
    first_positions = next(S);
    num_sequences = next(1);
    step = next(1);
    grad_seed = next(1, DType::kF32);
    sample_weights = next(batch.sample_weights.defined() ? S : 0, DType::kF32);
    encoded = next(batch.encoded.defined() ? S * batch.encoded.dim(1) : 0, DType::kF32);
    end = at;
  }
};

void Copy(int32_t* to, const Tensor& from) { std::ranges::copy(from.values<int32_t>(), to); }

}  // namespace

DeviceBatch DeviceBatch::In(const Tensor& buffer, const Batch& batch, const PackedShape& shape) {
  const Places places(batch, shape);
  Check(buffer.bytes() == places.end, "device_batch", "the inputs have ", places.end,
        " bytes but the buffer ", buffer.bytes());
  const auto part = [&](int64_t at, Shape of_part, DType dtype = DType::kI32) {
    Tensor tensor = Tensor::Unallocated(std::move(of_part), dtype, buffer.device());
    tensor.impl()->storage = buffer.impl()->storage;
    tensor.impl()->offset = at / SizeOf(dtype);
    return tensor;
  };
  const int64_t rows = shape.rows, S = shape.sequences;
  DeviceBatch inputs;
  if (batch.labels.defined()) {
    inputs.labels = part(places.labels, LabelShape(batch.labels, S), LabelDType(batch.labels));
  }
  inputs.input_ids = part(places.input_ids, {rows});
  inputs.token_type_ids = part(places.token_type_ids, {rows});
  inputs.row_positions = part(places.row_positions, {rows});
  inputs.row_samples = part(places.row_samples, {rows});
  inputs.cu_seqlens = part(places.cu_seqlens, {S + 1});
  inputs.sample_ids = part(places.sample_ids, {S});
  inputs.first_positions = part(places.first_positions, {S});
  inputs.num_sequences = part(places.num_sequences, {1});
  inputs.step = part(places.step, {1});
  inputs.grad_seed = part(places.grad_seed, {}, DType::kF32);
  if (batch.sample_weights.defined())
    inputs.sample_weights = part(places.sample_weights, {S}, DType::kF32);
  if (batch.encoded.defined())
    inputs.encoded = part(places.encoded, {S, batch.encoded.dim(1)}, DType::kF32);
  inputs.max_seqlen = shape.max_seqlen;
  return inputs;
}

Tensor DeviceBatch::Pack(const Batch& batch, const PackedShape& shape, uint32_t step,
                         float grad_seed) {
  const int64_t B = batch.size(), S = shape.sequences;
  Check(S >= B && batch.num_tokens() + S - B <= shape.rows && batch.max_seqlen <= shape.max_seqlen,
        "device_batch", "a batch of ", B, " sequences and ", batch.num_tokens(),
        " tokens does not fit into the place of one of ", S, " sequences and ", shape.rows,
        " tokens");
  const Places places(batch, shape);
  const Tensor host = Tensor::Zeros({places.end}, DType::kU8);
  char* const base = static_cast<char*>(host.raw_data());
  const auto integers = [&](int64_t place) { return reinterpret_cast<int32_t*>(base + place); };
  if (batch.labels.defined()) {
    const Tensor converted = batch.labels.To(LabelDType(batch.labels));
    std::memcpy(base + places.labels, converted.raw_data(), static_cast<size_t>(converted.bytes()));
    if (converted.dtype() == DType::kI64) {
      std::fill_n(reinterpret_cast<int64_t*>(base + places.labels) + converted.numel(),
                  (places.input_ids - places.labels) / SizeOf(DType::kI64) - converted.numel(),
                  kIgnoreIndex);
    }
  }
  Copy(integers(places.input_ids), batch.input_ids);
  Copy(integers(places.token_type_ids), batch.token_type_ids);
  Copy(integers(places.row_positions), batch.position_ids);
  const std::span<int32_t> starts(integers(places.cu_seqlens), static_cast<size_t>(S + 1));
  Copy(starts.data(), batch.cu_seqlens);
  for (int64_t b = B; b < S; ++b) starts[b + 1] = starts[b] + 1;
  Copy(integers(places.sample_ids), batch.sample_ids);
  batch.FillRowSamples(integers(places.row_samples));
  *integers(places.num_sequences) = static_cast<int32_t>(B);
  *integers(places.step) = static_cast<int32_t>(step);
  std::memcpy(base + places.grad_seed, &grad_seed, sizeof(grad_seed));
  const auto copy = [&](int64_t place, const Tensor& numbers) {
    if (!numbers.defined()) return;
    std::memcpy(base + place, numbers.raw_data(), static_cast<size_t>(numbers.bytes()));
  };
  copy(places.sample_weights, batch.sample_weights);
  copy(places.encoded, batch.encoded);
  return host;
}

DeviceBatch DeviceBatch::Make(const Batch& batch, int64_t rows, Device device, uint32_t step) {
  const PackedShape shape = {rows, batch.size(), batch.max_seqlen};
  const Tensor host = Pack(batch, shape, step);
  if (device.is_cpu()) return In(host, batch, shape);
  const AllocationTag allocation_tag = AllocationTag::Buffer("batch inputs");
  const Tensor buffer = Tensor::Empty({host.bytes()}, DType::kU8, device);
  BackendOf(device).PrefetchToDevice(buffer.raw_data(), host.raw_data(), host.bytes());
  return In(buffer, batch, shape);
}

}  // namespace lathe
