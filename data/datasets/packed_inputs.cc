#include "lathe/data/datasets/packed_inputs.h"

#include <algorithm>
#include <cstring>

#include "lathe/core/base/asked_by.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/losses.h"

namespace lathe {
namespace {

DType LabelDType(const Tensor& labels) {
  return labels.dtype() == DType::kI32 ? DType::kI64 : labels.dtype();
}

// Returns a tensor at byte `*at` of the buffer and moves `*at` behind it.
Tensor Part(const Tensor& buffer, int64_t* at, Shape shape, DType dtype) {
  Tensor part = Tensor::Unallocated(std::move(shape), dtype, buffer.device());
  part.impl()->storage = buffer.impl()->storage;
  part.impl()->offset = *at / SizeOf(dtype);
  *at += part.bytes();
  return part;
}

void Copy(int32_t* to, const Tensor& from) { std::ranges::copy(from.values<int32_t>(), to); }

// The shape of `labels` for this number of sequences.
Shape LabelShape(const Tensor& labels, int64_t sequences) {
  Shape shape = labels.shape();
  shape[0] = sequences;
  return shape;
}

}  // namespace

PackedInputs PackedInputs::Make(const Batch& batch, int64_t rows, Device device, uint32_t step,
                                int64_t sequences) {
  const int64_t S = sequences == 0 ? batch.size() : sequences;
  PackedInputs inputs;
  int64_t bytes = (4 * rows + 3 * S + 4) * SizeOf(DType::kI32);
  Shape label_shape;
  if (batch.labels.defined()) {
    label_shape = LabelShape(batch.labels, S);
    bytes += NumElements(label_shape) * SizeOf(LabelDType(batch.labels));
  }
  const AskedBy asked_by = AskedBy::Buffer("batch inputs");
  inputs.buffer_ = Tensor::Empty({bytes}, DType::kU8, device);
  int64_t at = 0;
  const auto part = [&](Shape shape, DType dtype = DType::kI32) {
    return Part(inputs.buffer_, &at, std::move(shape), dtype);
  };
  // Elements of 8 bytes come first, so that all are aligned.
  if (batch.labels.defined()) inputs.labels = part(label_shape, LabelDType(batch.labels));
  inputs.input_ids = part({rows});
  inputs.token_type_ids = part({rows});
  inputs.row_positions = part({rows});
  inputs.row_samples = part({rows});
  inputs.cu_seqlens = part({S + 1});
  inputs.sample_ids = part({S});
  inputs.first_positions = part({S});
  inputs.num_sequences = part({1});
  inputs.step = part({1});
  inputs.grad_seed = part({}, DType::kF32);
  inputs.max_seqlen = batch.max_seqlen;
  inputs.Fill(batch, step);
  return inputs;
}

bool PackedInputs::Fits(const Batch& batch) const {
  const int64_t surplus = sample_ids.numel() - batch.size();
  return surplus >= 0 && batch.num_tokens() + surplus <= input_ids.numel() &&
         batch.max_seqlen <= max_seqlen && batch.labels.defined() == labels.defined() &&
         (!labels.defined() || (LabelShape(batch.labels, sample_ids.numel()) == labels.shape() &&
                                LabelDType(batch.labels) == labels.dtype()));
}

void PackedInputs::Fill(const Batch& batch, uint32_t dropout_step, float seed) {
  Check(Fits(batch), "packed_inputs", "a batch of ", batch.size(), " sequences and ",
        batch.num_tokens(), " tokens does not fit into the place of one of ", sample_ids.numel(),
        " sequences and ", input_ids.numel(), " tokens");
  const int64_t B = batch.size(), S = sample_ids.numel();
  const Tensor host = Tensor::Zeros({buffer_.numel()}, DType::kU8);
  char* const base = static_cast<char*>(host.raw_data());
  // The place of `part` in the copy on the host.
  const auto place = [&](const Tensor& part) {
    return base + part.impl()->offset * SizeOf(part.dtype());
  };
  const auto integers = [&](const Tensor& part) { return reinterpret_cast<int32_t*>(place(part)); };
  if (labels.defined()) {
    const Tensor converted = batch.labels.To(labels.dtype());
    std::memcpy(place(labels), converted.raw_data(), static_cast<size_t>(converted.bytes()));
    if (labels.dtype() == DType::kI64) {
      std::fill_n(reinterpret_cast<int64_t*>(place(labels)) + converted.numel(),
                  labels.numel() - converted.numel(), kIgnoreIndex);
    }
  }
  Copy(integers(input_ids), batch.input_ids);
  Copy(integers(token_type_ids), batch.token_type_ids);
  Copy(integers(row_positions), batch.position_ids);
  Copy(integers(cu_seqlens), batch.cu_seqlens);
  for (int64_t b = B; b < S; ++b) integers(cu_seqlens)[b + 1] = integers(cu_seqlens)[b] + 1;
  Copy(integers(sample_ids), batch.sample_ids);
  batch.FillRowSamples(integers(row_samples));
  *integers(num_sequences) = static_cast<int32_t>(B);
  *integers(step) = static_cast<int32_t>(dropout_step);
  std::memcpy(place(grad_seed), &seed, sizeof(seed));
  if (buffer_.device().is_cpu()) return buffer_.CopyFrom(host);
  BackendOf(buffer_.device()).CopyAhead(buffer_.raw_data(), host.raw_data(), host.bytes());
  buffer_.impl()->storage->BumpVersion();
}

}  // namespace lathe
