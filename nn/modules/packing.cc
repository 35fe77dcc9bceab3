#include "lathe/nn/modules/packing.h"

#include <algorithm>
#include <vector>

#include "lathe/core/ops/shape.h"

namespace lathe::nn {

Packing::Packing(const Tensor& attention_mask, Device device) {
  Check(attention_mask.defined() && attention_mask.ndim() == 2, "packing",
        "attention_mask must have shape [B, S] but has ",
        attention_mask.defined() ? ToString(attention_mask.shape()) : "no value");
  Check(!IsFloating(attention_mask.dtype()), "packing",
        "attention_mask must have an integer or bool dtype but has ",
        ToString(attention_mask.dtype()));
  batch_ = attention_mask.dim(0);
  length_ = attention_mask.dim(1);
  const std::vector<int64_t> mask = attention_mask.To(Device{}).To(DType::kI64).ToVector<int64_t>();
  std::vector<uint8_t> is_token(mask.size());
  std::transform(mask.begin(), mask.end(), is_token.begin(), [](int64_t m) { return m != 0; });
  Fill(is_token, device);
}

Packing::Packing(int64_t batch, int64_t length, Device device) : batch_(batch), length_(length) {
  Check(batch >= 0 && length > 0, "packing", "expected sequences of at least one token but got [",
        batch, ", ", length, "]");
  Fill(std::vector<uint8_t>(static_cast<size_t>(batch * length), 1), device);
}

void Packing::Fill(const std::vector<uint8_t>& is_token, Device device) {
  std::vector<int64_t> tokens, places;
  std::vector<int32_t> ends = {0}, samples, row_samples, row_positions;
  int64_t longest = 0;
  for (int64_t b = 0; b < batch_; ++b) {
    int32_t position = 0;
    for (int64_t s = 0; s < length_; ++s) {
      const int64_t row = b * length_ + s;
      places.push_back(is_token[static_cast<size_t>(row)] ? std::ssize(tokens) : -1);
      if (places.back() < 0) continue;
      tokens.push_back(row);
      row_samples.push_back(static_cast<int32_t>(b));
      row_positions.push_back(position++);
    }
    Check(position > 0, "packing", "sequence ", b, " of the attention_mask has no token");
    lengths_.push_back(position);
    longest = std::max<int64_t>(longest, position);
    ends.push_back(static_cast<int32_t>(tokens.size()));
    samples.push_back(static_cast<int32_t>(b));
  }
  std::replace(places.begin(), places.end(), int64_t{-1}, std::ssize(tokens));
  if (std::ssize(tokens) < batch_ * length_) {
    tokens_ = Tensor::FromVector(tokens).To(device);
    places_ = Tensor::FromVector(places).To(device);
  }
  context_.sequences = {.cu_seqlens = Tensor::FromVector(ends).To(device),
                        .sample_ids = Tensor::FromVector(samples).To(device),
                        .max_seqlen = longest,
                        .num_tokens = std::ssize(tokens)};
  context_.row_samples = Tensor::FromVector(row_samples).To(device);
  context_.row_positions = Tensor::FromVector(row_positions).To(device);
  context_.first_positions = Tensor::Zeros({batch_}, DType::kI32, device);
}

Tensor Packing::Pack(const Tensor& x) const {
  Check(x.ndim() >= 2 && x.dim(0) == batch_ && x.dim(1) == length_, "packing", "expected shape [",
        batch_, ", ", length_, ", ...] but got ", x.shape());
  Shape rows = {batch_ * length_};
  rows.insert(rows.end(), x.shape().begin() + 2, x.shape().end());
  const Tensor flat = Reshape(x, rows);
  return tokens_.defined() ? GatherRows(flat, tokens_) : flat;
}

Tensor Packing::Unpack(const Tensor& y) const {
  Check(y.ndim() >= 1 && y.dim(0) == num_tokens(), "packing", "expected shape [", num_tokens(),
        ", ...] but got ", y.shape());
  Shape padded = {batch_, length_}, one = y.shape();
  padded.insert(padded.end(), y.shape().begin() + 1, y.shape().end());
  if (!places_.defined()) return Reshape(y, padded);
  one[0] = 1;  // a row of zeros behind the others stands for padding
  const Tensor zero = Tensor::Zeros(one, y.dtype(), y.device());
  return Reshape(GatherRows(ConcatRows({y, zero}), places_), padded);
}

}  // namespace lathe::nn
