// Calls every op with inputs that don't fit: other shapes and dtypes, undefined and empty tensors.
// An op either computes a result or throws an Error of one line. The error names the op, and a
// shape or the dtype that does not fit. Also calls every op with bfloat16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/ops.h"
#include "lathe/nn/losses/losses.h"

namespace lathe {
namespace {

using Tensors = std::vector<Tensor>;

struct Input {
  Shape shape;
  DType dtype = DType::kF32;
  std::vector<int64_t> values = {};  // of integers; none means 0 and 1 in turn
};

struct Case {
  std::string op;
  std::vector<Input> inputs;
  std::function<Tensor(const Tensors&)> call;
  std::set<std::string> tags = {};  // other ops whose errors fit
};

Tensor TensorOf(const Input& input) {
  const auto n = static_cast<size_t>(NumElements(input.shape));
  std::vector<float> values(n);
  const bool numbers = input.dtype == DType::kF32 || input.dtype == DType::kF64 ||
                       input.dtype == DType::kBF16 || input.dtype == DType::kF16;
  for (size_t i = 0; i < n; ++i) {
    if (numbers) {
      values[i] = 0.6f + 0.3f * std::sin(static_cast<float>(i));
    } else if (input.values.empty()) {
      values[i] = static_cast<float>(i % 2);
    } else {
      values[i] = static_cast<float>(input.values[std::min(i, input.values.size() - 1)]);
    }
  }
  return Tensor::FromVector(values, input.shape).To(input.dtype);
}

PackedSequences Sequences(const Tensor& cu_seqlens) {
  return {.cu_seqlens = cu_seqlens, .max_seqlen = 3};
}

const Input kEnds = {{3}, DType::kI32, {0, 3, 5}};  // of sequences with five tokens
const Input kClasses = {{4}, DType::kI64, {0, 2, 1, 0}};

// It is long because it is a table: one statement for each op.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& op, std::vector<Input> inputs,
                       std::function<Tensor(const Tensors&)> call,
                       std::set<std::string> tags = {}) {
    cases.push_back({op, std::move(inputs), std::move(call), std::move(tags)});
  };
  const Input matrix = {{4, 3}}, row = {{3}};

  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  for (const auto& [name, op] : std::vector<std::pair<const char*, Binary>>{
           {"add", Add},
           {"sub", Sub},
           {"mul", Mul},
           {"div", static_cast<Binary>(Div)},
           {"pow", static_cast<Binary>(Pow)},
           {"maximum", Maximum},
           {"minimum", Minimum},
           {"equal", static_cast<Binary>(Equal)},
           {"less", static_cast<Binary>(Less)},
           {"greater_equal", static_cast<Binary>(GreaterEqual)}}) {
    add(name, {matrix, row}, [op = op](const Tensors& x) { return op(x[0], x[1]); });
    add(name, {matrix, matrix}, [op = op](const Tensors& x) { return op(x[0], x[1]); });
  }
  add("logical_and", {{{4, 3}, DType::kBool}, {{3}, DType::kBool}},
      [](const Tensors& x) { return LogicalAnd(x[0], x[1]); });
  add("logical_not", {{{4, 3}, DType::kBool}}, [](const Tensors& x) { return LogicalNot(x[0]); });

  using Unary = Tensor (*)(const Tensor&);
  for (const auto& [name, op] :
       std::vector<std::pair<const char*, Unary>>{{"neg", Neg},
                                                  {"abs", Abs},
                                                  {"exp", Exp},
                                                  {"log", Log},
                                                  {"sqrt", Sqrt},
                                                  {"tanh", Tanh},
                                                  {"sigmoid", Sigmoid},
                                                  {"erf", Erf},
                                                  {"relu", Relu},
                                                  {"sum", static_cast<Unary>(Sum)},
                                                  {"mean", static_cast<Unary>(Mean)},
                                                  {"sum_last", SumLast},
                                                  {"mean_last", MeanLast},
                                                  {"softmax", SoftmaxLast},
                                                  {"log_softmax", LogSoftmaxLast},
                                                  {"max", static_cast<Unary>(Max)},
                                                  {"min", static_cast<Unary>(Min)},
                                                  {"argmax", static_cast<Unary>(ArgMax)},
                                                  {"transpose", static_cast<Unary>(Transpose)},
                                                  {"squeeze", static_cast<Unary>(Squeeze)}}) {
    add(name, {matrix}, [op = op](const Tensors& x) { return op(x[0]); }, {"sum_last"});
  }
  add("scale", {matrix}, [](const Tensors& x) { return Scale(x[0], 2); });
  add("clamp", {matrix}, [](const Tensors& x) { return Clamp(x[0], {.min = 0}); });
  add("activation", {matrix},
      [](const Tensors& x) { return Activation(x[0], ActivationKind::kGelu); });
  add("gated_activation", {{{5, 4}}}, [](const Tensors& x) {
    return GatedActivation(x[0], ActivationKind::kGelu, GateHalves::kColumns);
  });
  add("cast", {matrix}, [](const Tensors& x) { return Cast(x[0], DType::kBF16); });
  add("dropout", {matrix, {{4}, DType::kI32}, {{4}, DType::kI32}}, [](const Tensors& x) {
    return Dropout(x[0], {.p = 0.5, .row_samples = x[1], .row_positions = x[2]});
  });

  // Ops that reduce or move dimensions.
  const Input cube = {{2, 3, 4}};
  add("sum", {cube}, [](const Tensors& x) { return Sum(x[0], {0, 2}); });
  add("mean", {cube}, [](const Tensors& x) { return Mean(x[0], 1); });
  add("softmax", {cube}, [](const Tensors& x) { return Softmax(x[0], 1); });
  add("variance", {cube}, [](const Tensors& x) { return Variance(x[0], {0, 2}); });
  add("max", {cube}, [](const Tensors& x) { return Max(x[0], 2).values; });
  add("argmin", {cube}, [](const Tensors& x) { return ArgMin(x[0], 2); });
  add("amax", {cube}, [](const Tensors& x) { return AMax(x[0], {0, 2}); });
  add("topk", {cube}, [](const Tensors& x) { return TopK(x[0], 2).values; });
  add("permute", {cube}, [](const Tensors& x) { return Permute(x[0], {2, 0, 1}); });
  add("transpose", {cube}, [](const Tensors& x) { return Transpose(x[0], 1, 2); });
  add("reshape", {cube}, [](const Tensors& x) { return Reshape(x[0], {6, -1}); });
  add("squeeze", {cube}, [](const Tensors& x) { return Squeeze(x[0], 2); });
  add("unsqueeze", {cube}, [](const Tensors& x) { return Unsqueeze(x[0], 3); });
  add("flatten", {cube}, [](const Tensors& x) { return Flatten(x[0], 1, 2); });
  add("expand", {{{3, 1}}},
      [](const Tensors& x) {
        return Expand(x[0], {2, 3, 4});
      },
      {"sum_to_shape"});
  add("slice", {cube}, [](const Tensors& x) { return Slice(x[0], 2, 1, 3); });
  add("split", {cube}, [](const Tensors& x) { return Split(x[0], {1, 3}, 2)[0]; });
  add("concat", {cube, cube}, [](const Tensors& x) { return Concat(x, 1); });
  add("stack", {cube, cube}, [](const Tensors& x) { return Stack(x, 1); });
  add("slice", {matrix}, [](const Tensors& x) { return SliceRows(x[0], 1, 3); }, {"tensor"});
  add("slice_columns", {matrix}, [](const Tensors& x) { return SliceColumns(x[0], 1, 3); });
  add("concat_rows", {matrix, matrix}, [](const Tensors& x) { return ConcatRows(x); });
  add("concat_columns", {matrix, matrix}, [](const Tensors& x) { return ConcatColumns(x); });
  add("repeat_heads", {{{5, 4}}}, [](const Tensors& x) { return RepeatHeads(x[0], 2, 3); });

  // Indices and masks.
  add("gather_rows", {matrix, {{2}, DType::kI64}},
      [](const Tensors& x) { return GatherRows(x[0], x[1]); });
  add("gather", {matrix, {{4, 1}, DType::kI64}},
      [](const Tensors& x) { return Gather(x[0], 1, x[1]); });
  add("index_select", {matrix, {{2}, DType::kI64}},
      [](const Tensors& x) { return IndexSelect(x[0], 1, x[1]); });
  add("scatter_add", {matrix, {{4, 2}, DType::kI64}, {{4, 2}}},
      [](const Tensors& x) { return ScatterAdd(x[0], 1, x[1], x[2]); });
  add("one_hot", {{{4}, DType::kI64}}, [](const Tensors& x) { return OneHot(x[0], 2); });
  add("where", {{{4, 3}, DType::kBool}, matrix, row},
      [](const Tensors& x) { return Where(x[0], x[1], x[2]); });
  add("masked_fill", {matrix, {{3}, DType::kBool}},
      [](const Tensors& x) { return MaskedFill(x[0], x[1], -1); });
  add("embedding", {{{4}, DType::kI32}, matrix},
      [](const Tensors& x) { return EmbeddingSum({x[0]}, {x[1]}); });
  add("embedding_layer_norm", {{{4}, DType::kI32}, matrix, row, row},
      [](const Tensors& x) {
        return EmbeddingLayerNorm({x[0]}, {x[1]}, {-1}, x[2], x[3], 1e-5, {}, DType::kF32);
      },
      {"embedding", "layer_norm"});

  // Products and norms.
  add("matmul", {{{2, 4, 3}}, {{3, 5}}}, [](const Tensors& x) { return Matmul(x[0], x[1]); });
  add("matmul", {matrix, {{3, 5}}}, [](const Tensors& x) { return MatrixProduct(x[0], x[1]); });
  add("linear", {matrix, {{5, 3}}, {{5}}},
      [](const Tensors& x) { return Linear(x[0], x[1], x[2]); });
  add("linear_stack", {matrix, {{5, 3}}, {{5}}},
      [](const Tensors& x) {
        return LinearStack(x[0], {x[1], x[1]}, {x[2], x[2]});
      },
      {"linear"});
  add("linear_parts", {matrix, {{4, 3}}, {{4}}},
      [](const Tensors& x) { return LinearParts(x[0], x[1], x[2], {.parts = 2}); });
  add("grouped_linear", {{{5, 4}}, {{6, 2}}, {{6}}}, [](const Tensors& x) {
    return GroupedLinear(x[0], {.weight = x[1], .bias = x[2], .groups = 2});
  });
  add("feed_forward", {matrix, {{5, 3}}, {{5}}, {{3, 5}}, {{3}}}, [](const Tensors& x) {
    return FeedForward(x[0], x[1], x[2], ActivationKind::kGelu, x[3], x[4]);
  });
  add("layer_norm", {matrix, row, row},
      [](const Tensors& x) { return LayerNorm(x[0], x[1], x[2], 1e-5); });
  add("dropout_add_layer_norm", {matrix, matrix, row, row},
      [](const Tensors& x) { return DropoutAddLayerNorm(x[0], x[1], x[2], x[3], 1e-5, {}); },
      {"layer_norm"});
  add("rms_norm", {matrix, row}, [](const Tensors& x) { return RmsNorm(x[0], x[1], 1e-5); });
  add("scale_shift", {matrix, matrix, row, row},
      [](const Tensors& x) { return ScaleShift(x[0], x[1], x[2], x[3]); });

  // Ops on packed sequences.
  const Input tokens = {{5, 4}};
  add("segment_mean", {tokens, kEnds}, [](const Tensors& x) { return SegmentMean(x[0], x[1]); });
  add("segment_max", {tokens, kEnds}, [](const Tensors& x) { return SegmentMax(x[0], x[1]); });
  add("token_positions",
      {{{5}, DType::kI32, {5, 6, 7, 8, 9}}, {{5}, DType::kI32, {0, 1, 2, 0, 1}}, kEnds},
      [](const Tensors& x) { return TokenPositions(x[0], x[1], x[2], 1); });
  add("unfold", {tokens, kEnds},
      [](const Tensors& x) { return PackedUnfold(x[0], Sequences(x[1]), 3); });
  add("conv1d", {tokens, {{6, 4, 3}}, {{6}}, kEnds},
      [](const Tensors& x) { return PackedConv1d(x[0], x[1], x[2], Sequences(x[3])); }, {"unfold"});
  add("depthwise_convolution", {tokens, {{4, 1, 3}}, kEnds},
      [](const Tensors& x) { return DepthwiseConvolution(x[0], x[1], Sequences(x[2])); });
  add("dynamic_convolution", {tokens, {{5, 6}}, kEnds}, [](const Tensors& x) {
    return DynamicConvolution(x[0], x[1], Sequences(x[2]), {.heads = 2});
  });
  add("attention", {tokens, {{10, 4}}, kEnds}, [](const Tensors& x) {
    return PackedAttention(x[0], x[1], Sequences(x[2]), {.num_heads = 2});
  });
  add("attention", {{{15, 4}}, kEnds}, [](const Tensors& x) {
    return PackedSelfAttention(x[0], Sequences(x[1]), {.num_heads = 2});
  });
  add("rotary_embedding", {tokens, {{5, 2}}, {{5}, DType::kI32, {0, 1, 2, 0, 1}}},
      [](const Tensors& x) {
        return RotaryEmbedding(x[0], x[1].defined() ? x[1].Detach() : x[1], x[2], {.num_heads = 2});
      });

  // Ops over windows of a signal.
  const Input signal = {{2, 4, 9}};
  add("conv1d", {signal, {{6, 2, 3}}, {{6}}},
      [](const Tensors& x) { return Conv1d(x[0], x[1], x[2], {.groups = 2}); });
  add("unfold1d", {signal}, [](const Tensors& x) { return Unfold1d(x[0], 3); });
  add("max_pool1d", {signal}, [](const Tensors& x) { return MaxPool1d(x[0], {.kernel_size = 2}); });
  add("avg_pool1d", {signal}, [](const Tensors& x) { return AvgPool1d(x[0], {.kernel_size = 2}); });

  // The losses.
  add("cross_entropy", {matrix, kClasses},
      [](const Tensors& x) { return CrossEntropy(x[0], x[1]); });
  add("soft_cross_entropy", {matrix, matrix},
      [](const Tensors& x) { return SoftCrossEntropy(x[0], x[1]); });
  add("mse_loss", {matrix, matrix}, [](const Tensors& x) { return MseLoss(x[0], x[1]); });
  add("bce_with_logits_loss", {matrix, matrix},
      [](const Tensors& x) { return BceWithLogitsLoss(x[0], x[1]); });
  add("weighted_cross_entropy", {matrix, kClasses, row, {{4}}}, [](const Tensors& x) {
    return WeightedCrossEntropy(x[0], x[1], {.class_weights = x[2], .row_weights = x[3]});
  });
  add("weighted_bce_with_logits", {matrix, matrix, row, {{4}}}, [](const Tensors& x) {
    return WeightedBceWithLogits(x[0], x[1], {.positive_weights = x[2], .row_weights = x[3]});
  });
  add("weighted_mse", {matrix, matrix, {{4}}},
      [](const Tensors& x) { return WeightedMse(x[0], x[1], x[2]); });
  add("l1_loss", {matrix, matrix}, [](const Tensors& x) { return nn::L1Loss(x[0], x[1]); });
  add("smooth_l1_loss", {matrix, matrix},
      [](const Tensors& x) { return nn::SmoothL1Loss(x[0], x[1]); });
  add("mse_loss", {matrix, matrix}, [](const Tensors& x) { return nn::MseLoss(x[0], x[1]); });
  add("bce_loss", {matrix, matrix}, [](const Tensors& x) { return nn::BceLoss(x[0], x[1]); });
  add("bce_with_logits_loss", {matrix, matrix, matrix, row}, [](const Tensors& x) {
    return nn::BceWithLogitsLoss(x[0], x[1], {.weight = x[2], .pos_weight = x[3]});
  });
  add("kl_div_loss", {matrix, matrix}, [](const Tensors& x) { return nn::KlDivLoss(x[0], x[1]); });
  add("nll_loss", {matrix, kClasses, row},
      [](const Tensors& x) { return nn::NllLoss(x[0], x[1], {.weight = x[2]}); });
  add("cross_entropy", {matrix, kClasses, row},
      [](const Tensors& x) { return nn::CrossEntropy(x[0], x[1], {.weight = x[2]}); });
  add("cosine_embedding_loss", {matrix, matrix, {{4}, DType::kI64, {1, -1, 1, 1}}},
      [](const Tensors& x) { return nn::CosineEmbeddingLoss(x[0], x[1], x[2]); });
  add("triplet_margin_loss", {matrix, matrix, matrix},
      [](const Tensors& x) { return nn::TripletMarginLoss(x[0], x[1], x[2]); });
  add("cosine_similarity", {matrix, matrix},
      [](const Tensors& x) { return nn::CosineSimilarity(x[0], x[1]); });
  return cases;
}

// What a message must contain if `input` takes the place of a good one: one of the texts.
struct Bad {
  Tensor input;
  std::vector<std::string> any_of;
  bool or_a_shape = false;
};

// Returns true if the text has a shape, such as [2, 3].
bool HasShape(const std::string& text) {
  static const std::regex shape("\\[[0-9, ]*\\]");
  return std::regex_search(text, shape);
}

std::vector<Bad> BadOf(const Input& good) {
  std::vector<Bad> bad = {{Tensor(), {"undefined", "no value"}}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI64,
                            DType::kI32, DType::kU8, DType::kBool}) {
    if (dtype != good.dtype)
      bad.push_back(
          {TensorOf({good.shape, dtype, good.values}), {ToString(dtype), "must be 1 or -1 but"}});
  }
  std::vector<Shape> shapes = {{}, {0}};
  for (size_t d = 0; d < good.shape.size(); ++d) {
    for (const int64_t size : {good.shape[d] + 1, int64_t{0}}) {
      shapes.push_back(good.shape);
      shapes.back()[d] = size;
    }
  }
  Shape more = good.shape;
  more.insert(more.begin(), 2);
  shapes.push_back(more);
  if (good.shape.size() > 1) shapes.emplace_back(good.shape.begin() + 1, good.shape.end());
  for (const Shape& shape : shapes) {
    bad.push_back({TensorOf({shape, good.dtype, good.values}),
                   {"scalar", "empty", "has 0 rows", "of 0 rows", "are 0 classes", "outside [0, 0)",
                    "has 0 tokens"},
                   /*or_a_shape=*/true});
  }
  return bad;
}

TEST(BadInputs, ErrorsNameTheOpAndWhatDoesNotFit) {
  for (const Case& c : Cases()) {
    Tensors good;
    for (const Input& input : c.inputs) good.push_back(TensorOf(input));
    EXPECT_NO_THROW(c.call(good)) << c.op;
    for (size_t i = 0; i < good.size(); ++i) {
      for (const Bad& bad : BadOf(c.inputs[i])) {
        Tensors inputs = good;
        inputs[i] = bad.input;
        for (Tensor& input : inputs) {
          if (input.defined() && IsFloating(input.dtype()))
            input = input.Clone().SetRequiresGrad(true);
        }
        const std::string what = c.op + ", input " + std::to_string(i) + ": " +
                                 (bad.input.defined() ? std::string(ToString(bad.input.dtype())) +
                                                            " " + ToString(bad.input.shape())
                                                      : "undefined");
        try {
          const Tensor y = c.call(inputs);
          if (y.requires_grad()) Backward(y, Tensor::Full(y.shape(), 1).To(y.dtype()));
        } catch (const Error& e) {
          const std::string& message = e.message();
          EXPECT_EQ(message.find('\n'), std::string::npos) << what << ": " << message;
          const std::string tag = message.substr(0, message.find(']') + 1);
          const std::string name = tag.empty() ? "" : tag.substr(1, tag.size() - 2);
          EXPECT_TRUE(name == c.op || c.tags.contains(name) ||
                      (!bad.input.defined() && name == "tensor"))
              << what << ": " << message;
          bool names_it = bad.or_a_shape && HasShape(message.substr(tag.size()));
          for (const std::string& text : bad.any_of)
            names_it |= message.find(text) != std::string::npos;
          EXPECT_TRUE(names_it) << what << ": " << message;
        } catch (const std::exception& e) {
          ADD_FAILURE() << what << " throws no Error: " << e.what();
        }
      }
    }
  }
}

// Runs the op and its backward pass with some inputs, those of the bits in `narrow`, in bfloat16.
// Returns the error, or "".
std::string ErrorInBFloat16(const Case& c, unsigned narrow) {
  Tensors inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(TensorOf(c.inputs[i]));
    if (narrow >> i & 1) inputs[i] = inputs[i].To(DType::kBF16);
    if (IsFloating(inputs[i].dtype())) inputs[i].SetRequiresGrad(true);
  }
  try {
    const Tensor y = c.call(inputs);
    if (y.requires_grad()) Backward(y, Tensor::Full(y.shape(), 1).To(y.dtype()));
  } catch (const Error& e) {
    return e.message();
  }
  for (const Tensor& input : inputs) {
    const Tensor grad = input.grad();
    EXPECT_TRUE(!grad.defined() || grad.dtype() == input.dtype()) << c.op;
  }
  return "";
}

// Parameters stay float32, so an op takes bfloat16 in some of its inputs, the first one included.
TEST(BFloat16Inputs, EveryOpTakesThem) {
  for (const Case& c : Cases()) {
    unsigned numbers = 0;
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      if (c.inputs[i].dtype == DType::kF32) numbers |= 1u << i;
    }
    if (numbers == 0 || c.op.starts_with("embedding")) continue;  // of tables, which stay float32
    const unsigned first = numbers & -numbers;
    const std::string error = ErrorInBFloat16(c, numbers);
    bool works = error.empty();
    for (unsigned some = first; some < numbers && !works; ++some) {
      works = (some & ~numbers) == 0 && (some & first) != 0 && ErrorInBFloat16(c, some).empty();
    }
    EXPECT_TRUE(works) << c.op << ": " << error;
  }
}

}  // namespace
}  // namespace lathe
