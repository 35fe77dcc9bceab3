#include "lathe/models/forward_context.h"

#include "lathe/data/datasets/device_batch.h"

namespace lathe {
namespace {

// Returns x: [T] i32, followed by zeros up to `rows` rows.
Tensor WithSurplus(const Tensor& x, int64_t rows) {
  if (x.numel() == rows) return x;
  Tensor filled = Tensor::Zeros({rows}, DType::kI32);
  filled.Slice(0, x.numel()).CopyFrom(x);
  return filled;
}

nn::ForwardContext OnHost(const Batch& batch, int64_t rows, uint32_t step) {
  nn::ForwardContext context;
  context.input_ids = WithSurplus(batch.input_ids, rows);
  context.token_type_ids = WithSurplus(batch.token_type_ids, rows);
  context.row_positions = WithSurplus(batch.position_ids, rows);
  context.row_samples = Tensor::Zeros({rows}, DType::kI32);
  batch.FillRowSamples(context.row_samples.data<int32_t>());
  context.sequences = {batch.cu_seqlens, batch.sample_ids, batch.max_seqlen,
                       batch.cu_seqlens.values<int32_t>().back()};
  context.first_positions = Tensor::Zeros({batch.size()}, DType::kI32);
  context.step = step;
  return context;
}

nn::ForwardContext OnDevice(const DeviceBatch& inputs) {
  nn::ForwardContext context;
  context.input_ids = inputs.input_ids;
  context.token_type_ids = inputs.token_type_ids;
  context.row_positions = inputs.row_positions;
  context.row_samples = inputs.row_samples;
  context.sequences = {inputs.cu_seqlens, inputs.sample_ids, inputs.max_seqlen};
  context.first_positions = inputs.first_positions;
  context.device_step = inputs.step;
  return context;
}

}  // namespace

nn::ForwardContext MakeForwardContext(const Batch& batch, int64_t rows, Device device,
                                      uint32_t step) {
  if (batch.on_device != nullptr && batch.on_device->input_ids.device() == device) {
    return OnDevice(*batch.on_device);
  }
  if (device.is_cpu()) return OnHost(batch, rows, step);
  return OnDevice(DeviceBatch::Make(batch, rows, device, step));
}

Tensor LabelsFor(const Batch& batch, Device device) {
  const DeviceBatch* there = batch.on_device.get();
  return there != nullptr && there->labels.device() == device ? there->labels : batch.labels;
}

Tensor SampleWeightsFor(const Batch& batch, Device device) {
  const DeviceBatch* there = batch.on_device.get();
  if (there != nullptr && there->sample_weights.defined() &&
      there->sample_weights.device() == device)
    return there->sample_weights;
  return batch.sample_weights.defined() ? batch.sample_weights.To(device) : Tensor();
}

Tensor NumCountedSequences(const Batch& batch, Device device) {
  const DeviceBatch* there = batch.on_device.get();
  return there != nullptr && there->num_sequences.device() == device ? there->num_sequences
                                                                     : Tensor();
}

}  // namespace lathe
