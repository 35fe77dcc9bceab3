#include "lathe/models/forward_context.h"

#include <vector>

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

// Sets what decides on dropout's masks. `row_samples`: the sample of each row.
void SetDropout(nn::ForwardContext& context, const BatchInfo& batch,
                const std::vector<int32_t>& row_samples, Device device, bool training,
                uint64_t seed) {
  Check(batch.step >= 0, "context", "the batch has no step; take it from a DataLoader");
  context.sequences.sample_ids = Tensor::FromVector(batch.sample_ids).To(device);
  context.row_samples = Tensor::FromVector(row_samples).To(device);
  context.training = training;
  context.seed = seed;
  context.step = static_cast<uint32_t>(batch.step);
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

// Returns a tensor of Batch::on_device if it is on `device`, else the batch's own one there.
// Undefined if the batch has none.
Tensor OnDeviceOf(const Batch& batch, Tensor Batch::*own, Tensor DeviceBatch::*there,
                  Device device) {
  const DeviceBatch* inputs = batch.on_device.get();
  if (inputs != nullptr && (inputs->*there).defined() && (inputs->*there).device() == device)
    return inputs->*there;
  return (batch.*own).defined() ? (batch.*own).To(device) : Tensor();
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

nn::ForwardContext ContextOf(const BatchInfo& batch, bool training, uint64_t seed, Device device) {
  nn::ForwardContext context;
  SetDropout(context, batch, batch.sample_ids, device, training, seed);
  context.row_positions = Tensor::Zeros({batch.num_samples()}, DType::kI32, device);
  context.first_positions = context.row_positions;
  return context;
}

nn::ForwardContext ContextOf(const BatchInfo& batch, const nn::Packing& packing, bool training,
                             uint64_t seed) {
  nn::ForwardContext context = packing.context();
  const std::vector<int64_t>& lengths = packing.lengths();
  Check(std::ssize(lengths) == batch.num_samples(), "context", "the packing has ", lengths.size(),
        " sequences but the batch has ", batch.num_samples(), " samples");
  std::vector<int32_t> row_samples;
  for (size_t b = 0; b < lengths.size(); ++b)
    row_samples.insert(row_samples.end(), static_cast<size_t>(lengths[b]), batch.sample_ids[b]);
  SetDropout(context, batch, row_samples, context.row_positions.device(), training, seed);
  return context;
}

Tensor LabelsFor(const Batch& batch, Device device) {
  const DeviceBatch* there = batch.on_device.get();
  return there != nullptr && there->labels.device() == device ? there->labels : batch.labels;
}

Tensor SampleWeightsFor(const Batch& batch, Device device) {
  return OnDeviceOf(batch, &Batch::sample_weights, &DeviceBatch::sample_weights, device);
}

Tensor EncodedFor(const Batch& batch, Device device) {
  return OnDeviceOf(batch, &Batch::encoded, &DeviceBatch::encoded, device);
}

Tensor NumCountedSequences(const Batch& batch, Device device) {
  const DeviceBatch* there = batch.on_device.get();
  return there != nullptr && there->num_sequences.device() == device ? there->num_sequences
                                                                     : Tensor();
}

}  // namespace lathe
