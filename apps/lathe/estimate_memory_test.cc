// Compares the estimate with what tensors take, and runs the command as a user does.
#include "lathe/apps/lathe/estimate_memory.h"

#include "lathe/apps/lathe/estimate_memory_testing.h"
#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/models/architecture.h"

namespace lathe {
namespace {

TEST(EstimateMemory, Float32) { Compare({.batch_size = 16}); }

TEST(EstimateMemory, BFloat16) { Compare({.batch_size = 16, .compute_dtype = DType::kBF16}); }

TEST(EstimateMemory, GradientCheckpointing) {
  Compare({.batch_size = 16, .gradient_checkpointing = true});
}

TEST(EstimateMemory, BFloat16AndGradientCheckpointing) {
  Compare({.batch_size = 16, .compute_dtype = DType::kBF16, .gradient_checkpointing = true});
}

TEST(EstimateMemory, OtherShapes) {
  Compare({.batch_size = 4, .max_seq_length = 512});
  for (const bool checkpointing : {false, true}) {
    Compare({.batch_size = 16, .gradient_checkpointing = checkpointing},
            {{"num_hidden_layers", 1}});
    Compare({.batch_size = 16, .gradient_checkpointing = checkpointing},
            {{"num_hidden_layers", 2}, {"intermediate_size", 2048}});
  }
}

TEST(EstimateMemory, RelativePositions) {
  Compare({.batch_size = 16}, {{"model_type", "mpnet"}});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Compare({.batch_size = 16, .compute_dtype = dtype},
            {{"position_embedding_type", "relative_key_query"}});
  }
}

TEST(EstimateMemory, RotaryPositions) {
  Compare({.batch_size = 16}, {{"model_type", "roformer"}, {"max_position_embeddings", 128}});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Compare({.batch_size = 16, .compute_dtype = dtype}, {{"model_type", "nomic_bert"}});
    Compare(
        {.batch_size = 16, .compute_dtype = dtype},
        {{"model_type", "eurobert"}, {"num_key_value_heads", 2}, {"classifier_pooling", "bos"}});
    for (const char* pooling : {"mean", "late"}) {
      SCOPED_TRACE(pooling);
      Compare({.batch_size = 16, .compute_dtype = dtype},
              {{"model_type", "eurobert"}, {"classifier_pooling", pooling}});
    }
    for (const char* pooling : {"cls", "mean"}) {
      SCOPED_TRACE(pooling);
      Compare({.batch_size = 16, .compute_dtype = dtype},
              {{"model_type", "modernbert"}, {"classifier_pooling", pooling}});
    }
  }
}

TEST(EstimateMemory, RotaryPositionsAndGradientCheckpointing) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const char* type : {"nomic_bert", "eurobert", "modernbert"}) {
      SCOPED_TRACE(type);
      Compare({.batch_size = 16, .compute_dtype = dtype, .gradient_checkpointing = true},
              {{"model_type", type}});
    }
  }
}

TEST(EstimateMemory, ProcessesExchangeRowsOfTheWordTable) {
  const auto model = MakeModel();
  const auto exchange = [&](int64_t num_processes, int64_t batch_size) {
    return EstimateMemory(
               *model,
               {.batch_size = batch_size, .max_seq_length = 16, .num_processes = num_processes})
        .exchange;
  };
  EXPECT_EQ(exchange(1, 8), 0);
  EXPECT_EQ(exchange(2, 8), 2 * 8 * 16 * 256 * 4);
  EXPECT_EQ(exchange(4, 64), kVocab / 2 * 256 * 4);
}

// The estimated moments match the part of the parameters that a real rank updates.
TEST(EstimateMemory, ProcessesShareMomentsOut) {
  for (const int n : {2, 3}) {
    const auto results = RunRanks(n, [](const ProcessEnvironment& env) {
      AcceleratorOptions options = Options(env);
      options.shard_optimizer = true;
      Accelerator accelerator(options);
      const auto model = MakeModel();
      model->Initialize(1);
      AdamW optimizer(model->Parameters(), {});
      accelerator.Prepare(*model, optimizer);
      model->Train();
      accelerator.Backward(model->Forward(MakeBatch({.batch_size = 1, .max_seq_length = 8})).loss);
      int64_t updated = model->NumParameters();
      for (const ElementRange& other : optimizer.shards()->others) updated -= other.size();
      return std::to_string(updated);
    });
    MemoryOptions options = {.num_processes = n};
    const auto model = MakeModel();
    const int64_t moments = EstimateMemory(*model, options).moments;
    for (const RankResult& result : results) {
      EXPECT_NEAR(static_cast<double>(moments) / (8 * std::stod(result.said)), 1, 0.02)
          << result.said;
    }
    options.shard_optimizer = false;
    EXPECT_EQ(EstimateMemory(*model, options).moments, 8 * model->NumParameters());
  }
}

TEST(EstimateMemory, ACheckpointCopiesWeightsAndMoments) {
  const auto model = MakeModel();
  const MemoryEstimate estimate = EstimateMemory(*model, {});
  model->Initialize(1);
  AdamW optimizer(model->Parameters(), {});
  model->Train();
  Backward(model->Forward(MakeBatch({.batch_size = 1, .max_seq_length = 8})).loss);
  optimizer.Step();
  StateDict weights, weights_copy, moments_copy;
  for (const Parameter& p : model->Parameters()) weights.Add(p.name, p.tensor);
  const int64_t before = TensorMemory().now;
  CopyState(weights, weights_copy);
  CopyState(optimizer.StateDict(), moments_copy);
  const int64_t copied = TensorMemory().now - before;
  EXPECT_NEAR(static_cast<double>(estimate.checkpoint_copy) / static_cast<double>(copied), 1, 0.01)
      << copied;
  EXPECT_EQ(EstimateMemory(*model, {.on_gpu = true}).checkpoint_copy, 0);
}

TEST(EstimateMemory, AFamilyMayDeclareNoPassMemory) {
  Architecture architecture = *FindArchitecture("bert");
  architecture.model_type = "bert-unknown-memory";
  architecture.pass_memory = nullptr;
  RegisterArchitecture(architecture);
  const auto model = MakeModel({{"model_type", "bert-unknown-memory"}});
  try {
    EstimateMemory(*model, {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "config: the memory of \"bert-unknown-memory\" models can't be estimated yet");
  }
}

class EstimateMemoryCommand : public CliTest {
 protected:
  RunResult Estimate(std::vector<std::string> args) const {
    args.insert(args.begin(), "estimate-memory");
    return RunProgram("lathe", args);
  }
};

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(EstimateMemoryCommand, PrintsATable) {
  // This is BERT-base, whose sizes are the configuration's defaults.
  Write("model/config.json", R"({"model_type": "bert"})");
  RunResult run = Estimate({Path("model"), "--batch_size", "32"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* part :
       {"bert, 109,483,778 parameters\n", "batches of 32 texts of 128 tokens, on the CPU\n",
        "float32     bfloat16\n",
        "  weights                                     417.6 MiB    417.6 MiB\n",
        "  16-bit copies of weights                            -    162.0 MiB\n",
        "  with a --save_strategy                       ", "with --gradient_checkpointing",
        "inference", "shorter texts take"}) {
    EXPECT_TRUE(Contains(run.out, part)) << part << " is missing in\n" << run.out;
  }
  EXPECT_FALSE(Contains(run.out, "processes")) << run.out;

  run = Estimate({Path("model"), "--max-seq-length=512", "--mixed_precision", "bf16",
                  "--gradient_checkpointing", "--num_processes", "4"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* part : {"of 512 tokens in each process, on the CPU\n", "all 4 processes",
                           "training, checkpointing, per process", "inference, per process",
                           "exchange of gradients", "AdamW's moments, its share",
                           // The moments take twice a quarter of the 417.6 MiB of parameters.
                           "208.8 MiB"}) {
    EXPECT_TRUE(Contains(run.out, part)) << part << " is missing in\n" << run.out;
  }
  EXPECT_FALSE(Contains(run.out, "float32 ")) << run.out;

  run =
      Estimate({Path("model"), "--device", "cuda", "--max_seq_length", "100", "--batch_size", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* part : {"float32     bfloat16      float16\n", ", on a GPU\n",
                           "  workspace of products                        32.0 MiB     32.0 MiB"
                           "     32.0 MiB\n",
                           "What CUDA and NCCL themselves take"}) {
    EXPECT_TRUE(Contains(run.out, part)) << part << " is missing in\n" << run.out;
  }
  // Rows are filled up to 128, so 100 tokens take as much as 128.
  EXPECT_EQ(run.out.substr(run.out.find("\n\n")), [&] {
    const RunResult full = Estimate(
        {Path("model"), "--device", "cuda", "--max_seq_length", "128", "--batch_size", "1"});
    return full.out.substr(full.out.find("\n\n"));
  }());
}

TEST_F(EstimateMemoryCommand, ShortModelsTakeWhatTheyCan) {
  const RunResult run = Estimate({Path("model")});  // 32 positions
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(Contains(run.out, "batches of 8 texts of 32 tokens")) << run.out;
}

TEST_F(EstimateMemoryCommand, BadInputGetsOneLine) {
  ExpectError(Estimate({}), "MODEL_DIR is missing", 2);
  ExpectError(Estimate({Path("model"), "more"}), "unknown argument \"more\"", 2);
  ExpectError(Estimate({Path("nothing")}), "nothing is not a folder", 1);
  ExpectError(Estimate({Path("train.csv")}), "train.csv is not a folder", 1);
  ExpectError(Estimate({root_}), "config.json: No such file or directory", 1);
  ExpectError(Estimate({Path("model"), "--batch_size", "0"}),
              "--batch_size must be at least 1 but is \"0\"", 2);
  ExpectError(Estimate({Path("model"), "--max_seq_length", "0"}),
              "--max_seq_length must be at least 1", 2);
  ExpectError(Estimate({Path("model"), "--max_seq_length", "33"}),
              "--max_seq_length is 33 but the model takes at most 32 tokens", 2);
  ExpectError(Estimate({Path("model"), "--mixed_precision", "fp8"}),
              "--mixed_precision must be one of no, bf16, fp16", 2);
  ExpectError(Estimate({Path("model"), "--mixed_precision", "fp16"}),
              "--mixed_precision fp16 needs a GPU", 2);
  SetConfig({{"max_position_embeddings", 1 << 30}});
  ExpectError(Estimate({Path("model"), "--max_seq_length", "1000000000", "--batch_size", "1000000",
                        "--num_processes", "1000"}),
              "the estimate has more bytes than can be counted", 1);
  SetConfig({{"model_type", "gpt2"}});
  ExpectError(Estimate({Path("model")}), "model_type \"gpt2\" is not one that Lathe has", 1);
}

}  // namespace
}  // namespace lathe
