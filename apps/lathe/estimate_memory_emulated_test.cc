// Compares the estimate with what tensors take on a device, here the emulated one.
#include "lathe/apps/lathe/estimate_memory_testing.h"

namespace lathe {
namespace {

const nlohmann::json kSmall = {{"hidden_size", 128}, {"intermediate_size", 512}};

TEST(EstimateMemoryOnDevice, EachPrecision) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Compare({.batch_size = 12, .max_seq_length = 32, .compute_dtype = dtype, .on_gpu = true},
            kSmall);
  }
}

TEST(EstimateMemoryOnDevice, GradientCheckpointing) {
  Compare({.batch_size = 12,
           .max_seq_length = 32,
           .compute_dtype = DType::kBF16,
           .gradient_checkpointing = true,
           .on_gpu = true},
          kSmall);
}

// The estimate counts the rows that are filled up: 300 tokens take 384 rows.
TEST(EstimateMemoryOnDevice, RowsAreFilledUp) {
  Compare({.batch_size = 10, .max_seq_length = 30, .on_gpu = true}, kSmall);
}

TEST(EstimateMemoryOnDevice, RotaryPositions) {
  for (const char* type : {"roformer", "nomic_bert", "eurobert", "modernbert"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(type);
      nlohmann::json config = kSmall;
      config.update({{"model_type", type}, {"max_position_embeddings", 64}});
      Compare({.batch_size = 12, .max_seq_length = 32, .compute_dtype = dtype, .on_gpu = true},
              config);
    }
  }
}

}  // namespace
}  // namespace lathe
