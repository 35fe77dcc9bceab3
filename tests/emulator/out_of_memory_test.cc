// Tests that an error names what asked for memory if a device has none left, for each kind of
// request. They run on the emulated device.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/attention.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dropout.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/layer_norm.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/losses.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/permute.h"
#include "lathe/data/datasets/device_batch.h"
#include "lathe/nn/layers.h"
#include "lathe/optim/optimizer.h"
#include "lathe/tests/emulator/emulator.h"

namespace lathe {
namespace {

const Device kGpu = {DeviceType::kCUDA, 0};

Tensor Halves(const Shape& shape) { return Tensor::Full(shape, 0.5, DType::kF32, kGpu); }
Tensor Leaf(const Shape& shape) { return Halves(shape).SetRequiresGrad(true); }
Tensor Integers(const std::vector<int32_t>& values) { return Tensor::FromVector(values).To(kGpu); }

// Takes all of the device's memory.
std::vector<Tensor> TakeAll() {
  emulator::SetMemorySize(cuda::DevicePool().Statistics().reserved);
  std::vector<Tensor> taken;
  for (int64_t bytes = int64_t{1} << 30; bytes >= 512; bytes /= 2) {
    try {
      while (true) taken.push_back(Tensor::Empty({bytes}, DType::kU8, kGpu));
    } catch (const Error&) {
    }
  }
  return taken;
}

// What asked for memory, as the error names it. `is_state` is true if the hint is about memory that
// a model keeps.
struct AllocationSource {
  std::string who;
  bool is_state = false;
  bool operator==(const AllocationSource&) const = default;
};
void PrintTo(const AllocationSource& allocation_source, std::ostream* out) {
  *out << allocation_source.who << (allocation_source.is_state ? ", state" : "");
}
AllocationSource AllocationSourceOf(const std::function<void()>& run) {
  AllocationSource allocation_source = {.who = "no error"};
  {
    const std::vector<Tensor> taken = TakeAll();
    try {
      run();
    } catch (const Error& e) {
      const std::string before = "[cuda] out of memory: ", after = " asked for ";
      const size_t end = e.message().find(after);
      allocation_source.who = e.message().starts_with(before) && end != std::string::npos
                                  ? e.message().substr(before.size(), end - before.size())
                                  : e.message();
      allocation_source.is_state = e.hint().starts_with("parameters, ");
    }
  }
  emulator::SetMemorySize(int64_t{16} << 30);
  return allocation_source;
}

TEST(OutOfMemory, NamesTheOp) {
  const Tensor row = Halves({16}), matrix = Halves({16, 16}), twelve = Halves({12, 16});
  const Tensor labels = Tensor::FromVector<int64_t>(std::vector<int64_t>(12, 3)).To(kGpu);
  const Tensor index = Integers({0, 3, 3, 1, 7, 5, 4, 0, 0, 2, 1, 8});
  const PackedSequences sequences = {
      .cu_seqlens = Integers({0, 2, 6}), .max_seqlen = 4, .num_tokens = 6};
  const DropoutSpec dropout = {.p = 0.5, .row_samples = index, .row_positions = index};
  const struct {
    const char* name;
    std::function<Tensor(const Tensor&)> op;  // takes a tensor [12, 16]
  } cases[] = {
      {"activation", [](const Tensor& x) { return Activation(x, ActivationKind::kGelu); }},
      {"add", [](const Tensor& x) { return Add(x, x); }},
      {"attention",
       [&](const Tensor& x) { return PackedAttention(SliceRows(x, 0, 6), x, sequences, {}); }},
      {"bce_with_logits_loss", [&](const Tensor& x) { return BceWithLogitsLoss(x, twelve); }},
      {"cast", [](const Tensor& x) { return Cast(x, DType::kBF16); }},
      {"concat_columns",
       [](const Tensor& x) {
         return ConcatColumns({x, x});
       }},
      {"cross_entropy", [&](const Tensor& x) { return CrossEntropy(x, labels); }},
      {"dropout", [&](const Tensor& x) { return Dropout(x, dropout); }},
      {"gather_rows", [&](const Tensor& x) { return GatherRows(x, index); }},
      {"layer_norm", [&](const Tensor& x) { return LayerNorm(x, row, row, 1e-5); }},
      {"linear", [&](const Tensor& x) { return Linear(x, matrix, row, ActivationKind::kTanh); }},
      {"linear_stack",
       [&](const Tensor& x) {
         return LinearStack(x, {matrix, matrix}, {row, row});
       }},
      {"matmul", [&](const Tensor& x) { return MatrixProduct(x, matrix); }},
      {"mse_loss", [&](const Tensor& x) { return MseLoss(x, twelve); }},
      {"mul", [](const Tensor& x) { return Mul(x, x); }},
      {"scale", [](const Tensor& x) { return Scale(x, 2); }},
      {"slice_columns", [](const Tensor& x) { return SliceColumns(x, 3, 8); }},
      {"softmax", [](const Tensor& x) { return SoftmaxLast(x); }},
      {"sum", [](const Tensor& x) { return Sum(x); }},
      {"sum_last", [](const Tensor& x) { return SumLast(x); }},
      {"transpose", [](const Tensor& x) { return Transpose(x); }},
  };
  for (const auto& [name, op] : cases) {
    const Tensor leaf = Leaf({12, 16});
    EXPECT_EQ(AllocationSourceOf([&, op = op] { op(leaf); }),
              AllocationSource{std::string(name) + " (forward)"});
    const Tensor y = op(Scale(leaf, 1)), dy = Tensor::Full(y.shape(), 1, y.dtype(), kGpu);
    EXPECT_EQ(AllocationSourceOf([&] { Backward(y, dy); }),
              AllocationSource{std::string(name) + " (backward)"});
  }
  const Tensor table = Leaf({9, 16});
  const auto embed = [&] {
    return EmbeddingLayerNorm({index}, {table}, {}, row, row, 1e-5, {}, DType::kF32);
  };
  EXPECT_EQ(AllocationSourceOf([&] { EmbeddingSum({index}, {table}); }),
            AllocationSource{"embedding (forward)"});
  EXPECT_EQ(AllocationSourceOf(embed), AllocationSource{"embedding_layer_norm (forward)"});
}

TEST(OutOfMemory, NamesGradientsOfLeavesAndWhatIsComputedAgain) {
  const Tensor x = Leaf({12, 16}), weight = Leaf({16, 16});
  Tensor y = Linear(x, weight, {}, ActivationKind::kNone), dy = Halves({12, 16});
  EXPECT_EQ(AllocationSourceOf([&] { Backward(y, dy); }),
            (AllocationSource{"gradients in linear (backward)", true}));
  y = Checkpoint([](const Tensor& t) { return SoftmaxLast(t); }, x);
  EXPECT_EQ(AllocationSourceOf([&] { Backward(y, dy); }),
            AllocationSource{"softmax (forward, recomputed)"});
  y = Sum(x);
  EXPECT_EQ(AllocationSourceOf([&] { Backward(y); }), AllocationSource{"the loss's gradient"});
}

TEST(OutOfMemory, NamesWhatAModelKeeps) {
  nn::Linear model(16, 16, Init::Normal(0.1));
  model.Initialize(1);
  EXPECT_EQ(AllocationSourceOf([&] { model.To(kGpu); }), (AllocationSource{"parameters", true}));
  model.To(kGpu);
  EXPECT_EQ(AllocationSourceOf([&] { AdamW(model.Parameters(), {}); }),
            (AllocationSource{"gradients", true}));
  AdamW optimizer(model.Parameters(), {});
  Backward(Sum(model.Forward(Halves({12, 16}))));
  EXPECT_EQ(AllocationSourceOf([&] { optimizer.Step(); }),
            (AllocationSource{"optimizer state", true}));
  EXPECT_EQ(AllocationSourceOf([&] { GradNorm(optimizer); }),
            AllocationSource{"gradient clipping"});
  const Tensor half = Cast(Halves({12, 16}), DType::kBF16);
  EXPECT_EQ(AllocationSourceOf([&] { LowPrecisionCopy(model.weight, DType::kBF16); }),
            (AllocationSource{"parameters' copies of low precision", true}));
}

TEST(OutOfMemory, NamesInputsAndScratchMemory) {
  const Batch batch = Batch::Pack({{1, 2, 3}}, {}, {});
  EXPECT_EQ(AllocationSourceOf([&] { DeviceBatch::Make(batch, 128, kGpu, 0); }),
            AllocationSource{"batch inputs"});
  const AllocationTag allocation_tag = AllocationTag::Op("linear");
  EXPECT_EQ(AllocationSourceOf([] { cuda::Workspace(int64_t{1} << 30); }),
            AllocationSource{"scratch memory in linear (forward)"});
}

TEST(OutOfMemory, NamesRecordedWork) {
  DeviceBackend& backend = BackendOf(kGpu);
  const Tensor x = Halves({4});
  const DeviceMemoryPoolScope scope(backend, backend.NewMemoryPool());
  emulator::SetMemorySize(cuda::DevicePool().Statistics().reserved);
  try {
    backend.Record([&] { Scale(x, 2); });
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find(": scale (forward), recorded as a CUDA graph, asked for "),
              std::string::npos)
        << e.message();
  }
  emulator::SetMemorySize(int64_t{16} << 30);
}

}  // namespace
}  // namespace lathe
