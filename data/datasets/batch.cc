#include "lathe/data/datasets/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lathe {
namespace {

constexpr Tensor Batch::*kTensors[] = {
    &Batch::input_ids,  &Batch::token_type_ids, &Batch::position_ids,   &Batch::cu_seqlens,
    &Batch::sample_ids, &Batch::labels,         &Batch::sample_weights, &Batch::encoded};

// Returns the values of a [B, S] tensor of i32 or i64.
std::vector<int64_t> Integers(const Tensor& tensor, const char* name) {
  Check(tensor.dtype() == DType::kI32 || tensor.dtype() == DType::kI64, "batch", name,
        " must be int32 or int64 but is ", ToString(tensor.dtype()));
  if (tensor.dtype() == DType::kI64) return tensor.ToVector<int64_t>();
  const auto values = tensor.values<int32_t>();
  return {values.begin(), values.end()};
}

}  // namespace

Batch Batch::Pack(const std::vector<std::vector<int32_t>>& sequences,
                  const std::vector<std::vector<int32_t>>& token_types, Tensor labels) {
  const int64_t batch_size = static_cast<int64_t>(sequences.size());
  Check(batch_size > 0, "batch", "expected at least one sequence but got none");
  Check(token_types.empty() || token_types.size() == sequences.size(), "batch", "expected ",
        sequences.size(), " rows of token types but got ", token_types.size());
  Check(!labels.defined() || (labels.ndim() >= 1 && labels.dim(0) == batch_size), "batch",
        "labels must have ", batch_size, " rows but have shape ",
        labels.defined() ? lathe::ToString(labels.shape()) : "");

  std::vector<int32_t> input_ids, token_type_ids, position_ids, cu_seqlens{0}, sample_ids;
  int64_t max_seqlen = 0;
  for (size_t b = 0; b < sequences.size(); ++b) {
    const std::vector<int32_t>& sequence = sequences[b];
    Check(!sequence.empty(), "batch", "sequence ", b, " has no tokens");
    input_ids.insert(input_ids.end(), sequence.begin(), sequence.end());
    if (!token_types.empty()) {
      Check(token_types[b].size() == sequence.size(), "batch", "sequence ", b, " has ",
            sequence.size(), " tokens but ", token_types[b].size(), " token types");
      token_type_ids.insert(token_type_ids.end(), token_types[b].begin(), token_types[b].end());
    }
    position_ids.resize(input_ids.size());
    std::iota(position_ids.end() - sequence.size(), position_ids.end(), 0);
    cu_seqlens.push_back(static_cast<int32_t>(input_ids.size()));
    sample_ids.push_back(static_cast<int32_t>(b));
    max_seqlen = std::max(max_seqlen, static_cast<int64_t>(sequence.size()));
  }
  token_type_ids.resize(input_ids.size(), 0);

  Batch batch;
  batch.input_ids = Tensor::FromVector(input_ids);
  batch.token_type_ids = Tensor::FromVector(token_type_ids);
  batch.position_ids = Tensor::FromVector(position_ids);
  batch.cu_seqlens = Tensor::FromVector(cu_seqlens);
  batch.sample_ids = Tensor::FromVector(sample_ids);
  batch.labels = std::move(labels);
  batch.max_seqlen = max_seqlen;
  return batch;
}

void SetBatchInfo(Batch& batch, const BatchInfo& info) {
  batch.indices = info.indices;
  batch.share = info.share;
  batch.step = info.step;
  const int64_t samples = info.num_samples(), each = samples == 0 ? 0 : batch.size() / samples;
  if (each == 0 || each * samples != batch.size()) return;
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(batch.size()));
  for (const int32_t id : info.sample_ids) {
    for (int64_t k = 0; k < each; ++k) ids.push_back(static_cast<int32_t>(each * id + k));
  }
  batch.sample_ids = Tensor::FromVector(ids);
}

Batch Batch::To(Device device) const {
  Batch batch = *this;
  for (Tensor Batch::*const part : kTensors) {
    if ((batch.*part).defined()) batch.*part = (batch.*part).To(device);
  }
  return batch;
}

bool Batch::is_on_host() const {
  return std::ranges::all_of(kTensors, [&](Tensor Batch::*part) {
    return !(this->*part).defined() || (this->*part).device().is_cpu();
  });
}

void Batch::FillRowSamples(int32_t* rows) const {
  const auto starts = cu_seqlens.values<int32_t>(), samples = sample_ids.values<int32_t>();
  for (size_t b = 0; b < samples.size(); ++b) {
    std::fill(rows + starts[b], rows + starts[b + 1], samples[b]);
  }
}

Batch Batch::FromPadded(const Tensor& input_ids, const Tensor& attention_mask,
                        const Tensor& token_type_ids, const Tensor& labels) {
  Check(input_ids.defined() && input_ids.ndim() == 2, "batch",
        "input_ids must have shape [B, S] but ",
        input_ids.defined() ? "have " + lathe::ToString(input_ids.shape()) : "are undefined");
  auto check_shape = [&](const Tensor& tensor, const char* name) {
    Check(tensor.shape() == input_ids.shape(), "batch", name, " must have shape ",
          input_ids.shape(), " but has ", tensor.shape());
  };
  Check(attention_mask.defined(), "batch", "attention_mask is undefined");
  check_shape(attention_mask, "attention_mask");
  if (token_type_ids.defined()) check_shape(token_type_ids, "token_type_ids");

  const std::vector<int64_t> ids = Integers(input_ids, "input_ids");
  const std::vector<int64_t> mask = Integers(attention_mask, "attention_mask");
  const std::vector<int64_t> types = token_type_ids.defined()
                                         ? Integers(token_type_ids, "token_type_ids")
                                         : std::vector<int64_t>(ids.size(), 0);
  const int64_t rows = input_ids.dim(0), width = input_ids.dim(1);
  std::vector<std::vector<int32_t>> sequences(rows), kept_types(rows);
  std::vector<int32_t> columns;
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t i = b * width; i < (b + 1) * width; ++i) {
      if (mask[i] == 0) continue;
      sequences[b].push_back(static_cast<int32_t>(ids[i]));
      kept_types[b].push_back(static_cast<int32_t>(types[i]));
      columns.push_back(static_cast<int32_t>(i - b * width));
    }
    Check(!sequences[b].empty(), "batch", "attention_mask keeps no token of row ", b);
  }
  Batch batch = Pack(sequences, kept_types, labels);
  batch.position_ids = Tensor::FromVector(columns);
  return batch;
}

}  // namespace lathe
