// Packing: the door between padded tensors and layers that work on packed sequences.
//
//   const nn::Packing packing(attention_mask, x.device());   // [B, S]
//   Tensor y = encoder.Forward(packing.Pack(x), packing.context());   // [T, H]
//   Tensor padded = packing.Unpack(y);                                // [B, S, H], 0 at padding
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/nn/context.h"

namespace lathe::nn {

class Packing {
 public:
  // attention_mask: [B, S] of any integer or bool dtype, as Transformers has it: not 0 for tokens,
  // 0 for padding, which may be anywhere. It is read on the host. Throws for a sequence without a
  // token. `device`: that of the tensors that will be packed.
  explicit Packing(const Tensor& attention_mask, Device device = {});
  // B sequences of S tokens each.
  Packing(int64_t batch, int64_t length, Device device = {});

  // [B, S, ...] -> [T, ...], with the rows of tokens in their order.
  Tensor Pack(const Tensor& x) const;
  // [T, ...] -> [B, S, ...], with 0 at padding.
  Tensor Unpack(const Tensor& y) const;

  // The sequences, for layers without dropout: sequence b counts as sample b. With dropout, take
  // ContextOf(batch, packing, training, seed) of models/forward_context.h. It has the samples'
  // places in the global batch, so that all ranks together drop what one process would.
  const ForwardContext& context() const { return context_; }
  int64_t num_tokens() const { return context_.sequences.num_tokens; }
  // The number of tokens of each sequence: [B].
  const std::vector<int64_t>& lengths() const { return lengths_; }

 private:
  void Fill(const std::vector<uint8_t>& is_token, Device device);

  int64_t batch_, length_;
  std::vector<int64_t> lengths_;
  Tensor tokens_;  // [T] i64: the row of each token among all B * S; undefined if all are tokens
  Tensor places_;  // [B * S] i64: the token of each row, or T for padding
  ForwardContext context_;
};

}  // namespace lathe::nn
