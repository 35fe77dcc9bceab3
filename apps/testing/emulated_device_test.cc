// Tests that programs with the CUDA backend give the same numbers on the emulated device as on the
// CPU.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Args = std::vector<std::string>;

constexpr char kFinetune[] = "finetune_emulated", kLathe[] = "lathe_emulated";

class EmulatedDeviceTest : public CliTest {
 protected:
  // Trains from fresh weights into the folder `out`.
  RunResult TrainOn(const std::string& device, const std::string& out, const Args& more,
                    const RunOptions& options = {}) const {
    Args args = TrainingArgs(out, {"--device", device, "--num_threads", "1", "--learning_rate",
                                   "2e-3", "--disable_tqdm"});
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram(kFinetune, args, options);
  }

  void ExpectNear(const std::vector<double>& a, const std::vector<double>& b,
                  double relative) const {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i], b[i], relative * std::max(std::abs(b[i]), 1e-2)) << i;
    }
  }

  // Trains, evaluates and predicts on the CPU and on the emulated device. Expects losses that agree
  // to `relative`, and logits to `logit`.
  void ExpectSameOnBoth(Args args, double relative = 1e-5, double logit = 1e-4,
                        const std::string& mixed_precision = "no") const {
    args.insert(args.end(), {"--do_eval", "--do_predict", "--max_steps", "10"});
    for (const std::string device : {"cpu", "cuda"}) {
      const RunResult run = TrainOn(device, device, args);
      ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
      EXPECT_EQ(run.err, device == "cpu" ? ExpectedNotes(mixed_precision) : "");
      EXPECT_EQ(run.out.find("emulated device") != std::string::npos, device == "cuda") << run.out;
    }
    // The device's memory held at least the parameters, gradients and moments.
    EXPECT_GT(ReadJson("cuda/train_results.json")["peak_device_memory_bytes"],
              3 * static_cast<int64_t>(Read("cuda/model.safetensors").size()));
    EXPECT_FALSE(ReadJson("cpu/train_results.json").contains("peak_device_memory_bytes"));
    ExpectNear(Logged("cuda", "loss"), Logged("cpu", "loss"), relative);
    ExpectNear(Logged("cuda", "grad_norm"), Logged("cpu", "grad_norm"), 10 * relative);
    EXPECT_EQ(Logged("cuda", "learning_rate"), Logged("cpu", "learning_rate"));
    const Json on_cpu = ReadJson("cpu/eval_results.json");
    const Json on_device = ReadJson("cuda/eval_results.json");
    EXPECT_NEAR(on_device["eval_loss"], on_cpu["eval_loss"], logit);
    ExpectSameTable(Read("cuda/predict_results.tsv"), Read("cpu/predict_results.tsv"), logit);
  }

  // Numbers agree to `tolerance`, everything else exactly.
  static void ExpectSameTable(const std::string& a, const std::string& b, double tolerance) {
    std::istringstream in_a(a), in_b(b);
    std::string x, y;
    while (in_a >> x) {
      ASSERT_TRUE(in_b >> y);
      char *end_x, *end_y;
      const double value_x = std::strtod(x.c_str(), &end_x);
      const double value_y = std::strtod(y.c_str(), &end_y);
      if (*end_x == 0 && *end_y == 0) {
        EXPECT_NEAR(value_x, value_y, tolerance);
      } else {
        EXPECT_EQ(x, y);
      }
    }
    EXPECT_FALSE(in_b >> y);
  }
};

TEST_F(EmulatedDeviceTest, TrainsAsOnTheCpu) { ExpectSameOnBoth({}); }

TEST_F(EmulatedDeviceTest, AccumulatesAsOnTheCpu) {
  // There are 96 samples in batches of 5: the last window of an epoch is short, and so is its last
  // batch.
  ExpectSameOnBoth({"--per_device_train_batch_size", "5", "--gradient_accumulation_steps", "3",
                    "--gradient_checkpointing", "--max_grad_norm", "0.05", "--weight_decay",
                    "0.1"});
}

TEST_F(EmulatedDeviceTest, GroupsByLengthAndKeepsTheBestAsOnTheCpu) {
  ExpectSameOnBoth({"--group_by_length", "--eval_strategy", "steps", "--eval_steps", "2",
                    "--load_best_model_at_end", "--max_grad_norm", "0"});
  ExpectNear(Logged("cuda", "eval_loss"), Logged("cpu", "eval_loss"), 1e-4);
  EXPECT_EQ(ReadJson("cuda/trainer_state.json")["best_global_step"],
            ReadJson("cpu/trainer_state.json")["best_global_step"]);
}

TEST_F(EmulatedDeviceTest, SgdAsOnTheCpu) {
  ExpectSameOnBoth({"--optim", "sgd", "--optim_args", "momentum=0.9,nesterov=true",
                    "--learning_rate", "1e-2", "--weight_decay", "0.1"});
}

// Graphs of passes take the weights of each batch with them.
TEST_F(EmulatedDeviceTest, WeighsLossesAsOnTheCpu) {
  std::istringstream rows(Read("train.csv"));
  std::string row, weighted = "sentence,label,weight\n";
  std::getline(rows, row);
  for (int i = 0; std::getline(rows, row); ++i)
    weighted += row + "," + std::to_string(i % 5) + "\n";
  Write("weighted.csv", weighted);
  ExpectSameOnBoth({"--train_file", Path("weighted.csv"), "--sample_weight_column", "weight",
                    "--class_weights", "negative=0.5,positive=3", "--focal_gamma", "1.5",
                    "--per_device_train_batch_size", "5", "--gradient_accumulation_steps", "2"});
}

// Recorded passes read the outputs of the encoder that are kept on the device.
TEST_F(EmulatedDeviceTest, RunsAFrozenEncoderOnceAsOnTheCpu) {
  for (const std::string device : {"cpu", "cuda"}) {
    const RunResult run =
        TrainOn(device, device,
                {"--freeze_layers", "encoder", "--config_overrides",
                 "hidden_dropout_prob=0,attention_probs_dropout_prob=0", "--max_steps", "30"});
    ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_EQ(run.out.find("note: the frozen encoder"), std::string::npos) << run.out;
  }
  ExpectNear(Logged("cuda", "loss"), Logged("cpu", "loss"), 1e-5);
}

TEST_F(EmulatedDeviceTest, BFloat16AsOnTheCpu) { ExpectSameOnBoth({"--bf16"}, 2e-2, 5e-2, "bf16"); }

// float16 has 11 bits, so losses are only near those of float32.
TEST_F(EmulatedDeviceTest, Float16) {
  const Args args = {"--max_steps", "12", "--do_eval", "--gradient_accumulation_steps", "2"};
  Args half = args;
  half.push_back("--fp16");
  ASSERT_EQ(TrainOn("cpu", "full", args).exit_code, 0);
  const RunResult run = TrainOn("cuda", "half", half);
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("precision   fp16"), std::string::npos) << run.out;
  ExpectNear(Logged("half", "loss"), Logged("full", "loss"), 2e-3);
  ExpectNear(Logged("half", "grad_norm"), Logged("full", "grad_norm"), 5e-2);
  EXPECT_NE(Logged("half", "loss"), Logged("full", "loss"));
  EXPECT_NEAR(ReadJson("half/eval_results.json")["eval_loss"],
              ReadJson("full/eval_results.json")["eval_loss"], 1e-2);
  EXPECT_EQ(ReadJson("half/train_results.json")["skipped_steps"], 0);
  EXPECT_EQ(Logged("half", "loss_scale"), std::vector<double>(12, 65536));
  EXPECT_FALSE(ReadJson("full/train_results.json").contains("skipped_steps"));
}

TEST_F(EmulatedDeviceTest, Float16RecoversFromOverflows) {
  const RunResult run =
      TrainOn("cuda", "out",
              {"--fp16", "--fp16_init_scale", "1e20", "--max_steps", "64", "--max_seq_length", "4",
               "--per_device_train_batch_size", "2", "--lr_scheduler_type", "cosine"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  const int64_t skipped = ReadJson("out/train_results.json")["skipped_steps"];
  // Each skip halves the scale, and 1e20 is 2^50 times float16's largest number.
  EXPECT_GT(skipped, 40);
  EXPECT_LT(skipped, 60);
  EXPECT_NE(run.out.find("  skipped_steps " + std::to_string(skipped)), std::string::npos);
  // The schedule skipped the same steps, and norms of gradients are logged only for steps that were
  // taken.
  const auto rates = Logged("out", "learning_rate");
  EXPECT_EQ(rates[40], 2e-3);
  EXPECT_EQ(std::ssize(std::set(rates.begin(), rates.end())), 64 - skipped);
  EXPECT_EQ(std::ssize(Logged("out", "grad_norm")), 64 - skipped);
  EXPECT_EQ(Logged("out", "loss_scale").back(), std::ldexp(1e20f, -static_cast<int>(skipped)));
}

TEST_F(EmulatedDeviceTest, Float16NeedsAGpu) {
  const RunResult run = TrainOn("cpu", "out", {"--fp16"});
  ExpectError(run, "fp16 needs a GPU");
  EXPECT_NE(run.err.find("bf16"), std::string::npos) << run.err;
  EXPECT_FALSE(Exists("out"));
}

TEST_F(EmulatedDeviceTest, Float16KeepsTheLastGoodModel) {
  const RunResult run =
      TrainOn("cuda", "out", {"--fp16", "--learning_rate", "1e30", "--max_steps", "6"});
  ExpectError(run, "error: step 2: the loss is NaN; ");
  EXPECT_NE(run.err.find("or use --mixed_precision bf16; the last good model"), std::string::npos)
      << run.err;
  EXPECT_EQ(RunProgram(kLathe, {"predict", Path("out"), "the film"}).exit_code, 0);
}

// `lathe launch --cpu` tells the program by an environment variable.
TEST_F(EmulatedDeviceTest, LaunchedOnTheCpu) {
  for (const Args& options : {Args{"--cpu"}, Args{}}) {
    Args args = {"launch", "--num_processes", "1"};
    args.insert(args.end(), options.begin(), options.end());
    args.insert(args.end(), {"apps/finetune/finetune_emulated", "--config_name", Path("model"),
                             "--train_file", Path("train.csv"), "--max_steps", "1", "--do_train",
                             "--output_dir", Path("out"), "--overwrite_output_dir"});
    const RunResult run = RunProgram(kLathe, args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out.find("emulated device") == std::string::npos, !options.empty()) << run.out;
  }
}

TEST_F(EmulatedDeviceTest, RegressionAsOnTheCpu) {
  std::string rows = "sentence1,sentence2,label\n";
  for (int i = 0; i < 24; ++i) {
    rows += i % 2 == 0 ? "a good film,the plot was great,4.5\n" : "a bad film,it is dull,1.0\n";
  }
  for (const char* name : {"train.csv", "dev.csv", "test.csv"}) Write(name, rows);
  ExpectSameOnBoth({}, 2e-5);
}

TEST_F(EmulatedDeviceTest, SeveralLabelsAsOnTheCpu) {
  std::string rows;
  for (int i = 0; i < 24; ++i) {
    rows += i % 3 == 0   ? "{\"text\": \"good film\", \"label\": [\"fine\"]}\n"
            : i % 3 == 1 ? "{\"text\": \"bad film\", \"label\": [\"poor\", \"long\"]}\n"
                         : "{\"text\": \"film\", \"label\": []}\n";
  }
  Write("rows.jsonl", rows);
  ExpectSameOnBoth({"--train_file", Path("rows.jsonl"), "--validation_file", Path("rows.jsonl"),
                    "--test_file", Path("rows.jsonl")});
}

TEST_F(EmulatedDeviceTest, TheSameSeedGivesTheSameBits) {
  for (const std::string precision : {"no", "bf16", "fp16"}) {
    const auto weights = [&](const std::string& out, Args more) {
      more.insert(more.end(), {"--max_steps", "5", "--mixed_precision", precision});
      EXPECT_EQ(TrainOn("cuda", out + precision, more).exit_code, 0);
      return Read(out + precision + "/model.safetensors");
    };
    const std::string first = weights("a", {});
    EXPECT_TRUE(weights("b", {}) == first) << precision;
    EXPECT_TRUE(weights("c", {"--gradient_checkpointing"}) == first) << precision;
  }
}

TEST_F(EmulatedDeviceTest, DeterministicProductsGiveTheSameModel) {
  const Args args = {"--max_steps", "3"};
  Args deterministic = args;
  deterministic.push_back("--deterministic");
  for (const std::string device : {"cpu", "cuda"}) {
    const RunResult plain = TrainOn(device, device, args);
    const RunResult run = TrainOn(device, device + "2", deterministic);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out.find("  products    deterministic\n") != std::string::npos, device == "cuda")
        << run.out;
    EXPECT_EQ(plain.out.find("deterministic"), std::string::npos) << plain.out;
    EXPECT_TRUE(Read(device + "/model.safetensors") == Read(device + "2/model.safetensors"));
  }
  const RunResult predicted =
      RunProgram(kLathe, {"predict", Path("cuda"), "--deterministic", "the film"});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_EQ(predicted.out, RunProgram(kLathe, {"predict", Path("cuda"), "the film"}).out);
}

TEST_F(EmulatedDeviceTest, WhatItSavesTheCpuLoads) {
  ASSERT_EQ(TrainOn("cuda", "out", {"--max_steps", "8", "--learning_rate", "1e-2"}).exit_code, 0);
  std::vector<std::string> tables;
  const auto predict = [&](const Args& more, const RunOptions& options) {
    Args args = {"predict", Path("out"), "--all_scores"};
    args.insert(args.end(), more.begin(), more.end());
    const RunResult run = RunProgram(kLathe, args, options);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    return run.out;
  };
  const auto expect_same = [](const std::string& a, const std::string& b) {
    std::istringstream in_a(a), in_b(b);
    int lines = 0;
    for (std::string x, y; std::getline(in_a, x) && std::getline(in_b, y); ++lines) {
      const Json from_a = ParseJson(x), from_b = ParseJson(y);
      EXPECT_EQ(from_a["label"], from_b["label"]);
      EXPECT_NEAR(from_a["scores"]["positive"], from_b["scores"]["positive"], 1e-5);
    }
    EXPECT_EQ(lines, 3);
  };
  expect_same(predict({"--device", "cuda", "the film is great", "a dull plot", ""}, {}),
              predict({"--device", "cpu", "the film is great", "a dull plot", ""}, {}));
  const RunOptions input = {.input = "the film\n\ngood , bad\n"};
  // Without --device, predict uses the device that exists.
  expect_same(predict({"--batch_size", "2"}, input), predict({"--device", "cpu"}, input));
}

TEST_F(EmulatedDeviceTest, ControlCSavesTheModel) {
  const RunResult run =
      TrainOn("cuda", "out", {"--max_steps", "1000000"}, {.interrupt_after = "step 3/"});
  EXPECT_EQ(run.exit_code, 130) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find("interrupted after step"), std::string::npos) << run.out;
  EXPECT_EQ(RunProgram(kLathe, {"predict", Path("out"), "the film"}).exit_code, 0);
}

TEST_F(EmulatedDeviceTest, GoesOnFromACheckpointWithTheSameBits) {
  for (const std::string precision : {"no", "fp16"}) {
    const std::string whole = "whole_" + precision, resumed = "resumed_" + precision;
    Args args = {"--max_steps",  "9", "--save_strategy",   "steps",
                 "--save_steps", "4", "--mixed_precision", precision};
    RunResult run = TrainOn("cuda", whole, args);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    args.insert(args.end(), {"--resume_from_checkpoint", Path(whole + "/checkpoint-4")});
    run = TrainOn("cuda", resumed, args);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(Read(whole + "/model.safetensors"), Read(resumed + "/model.safetensors"));
    EXPECT_EQ(Losses(whole), Losses(resumed)) << precision;
  }
}

TEST_F(EmulatedDeviceTest, KeepsTheLastGoodModel) {
  for (const std::string device : {"cpu", "cuda"}) {
    const RunResult run = TrainOn(device, device, {"--learning_rate", "1e30", "--max_steps", "6"});
    ExpectError(run, "error: step 2: the loss is NaN; ");
    EXPECT_NE(run.err.find("the last good model, from before step "), std::string::npos) << run.err;
    const RunResult predicted =
        RunProgram(kLathe, {"predict", Path(device), "--device", "cuda", "the film"});
    EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  }
}

// If losses are read late, the steps after the bad one must change nothing.
TEST_F(EmulatedDeviceTest, KeepsTheLastGoodModelWhenLossesAreReadLate) {
  for (const Args& more : {Args{}, Args{"--gradient_accumulation_steps", "2"}}) {
    for (const std::string device : {"cpu", "cuda"}) {
      Args args = {"--learning_rate",       "1e30",  "--warmup_steps",  "10",
                   "--max_steps",           "20",    "--logging_steps", "100",
                   "--eval_strategy",       "steps", "--eval_steps",    "100",
                   "--overwrite_output_dir"};
      args.insert(args.end(), more.begin(), more.end());
      const RunResult run = TrainOn(device, device, args);
      ExpectError(run, "error: step 3: the loss is NaN; ");
      EXPECT_NE(run.err.find("the last good model, from before step "), std::string::npos)
          << run.err;
      const Json state = ReadJson(device + "/trainer_state.json");
      EXPECT_EQ(state["global_step"], 2);
      EXPECT_NEAR(state["epoch"], more.empty() ? 2 / 12.0 : 2 / 6.0, 1e-9) << state["epoch"];
      const RunResult predicted =
          RunProgram(kLathe, {"predict", Path(device), "--device", "cuda", "the film"});
      EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
    }
  }
}

TEST_F(EmulatedDeviceTest, GraphsChangeNothing) {
  const Args args = {"--max_steps", "30", "--logging_steps", "7", "--log_level", "debug"};
  Args without = args;
  without.push_back("--no_cuda_graphs");
  const RunResult with_graphs = TrainOn("cuda", "a", args), plain = TrainOn("cuda", "b", without);
  ASSERT_EQ(with_graphs.exit_code + plain.exit_code, 0) << with_graphs.err << plain.err;
  EXPECT_EQ(with_graphs.err.find("debug: recorded a CUDA graph for 128 rows of 8 sequences of up "
                                 "to 64 tokens\n"),
            0u)
      << with_graphs.err;
  EXPECT_EQ(plain.err, "");
  EXPECT_EQ(Logged("a", "loss"), Logged("b", "loss"));
  EXPECT_EQ(Logged("a", "grad_norm"), Logged("b", "grad_norm"));
  EXPECT_TRUE(Read("a/model.safetensors") == Read("b/model.safetensors"));
}

TEST_F(EmulatedDeviceTest, SaysThatMemoryDoesNotSuffice) {
  SetConfig({{"hidden_size", 256}, {"intermediate_size", 1024}});
  const struct {
    const char *mib, *batch_size, *allocation_source;
  } cases[] = {{"2", "8", "parameters"},
               {"12", "8", "gradients"},
               {"16", "96", "attention (forward)"},
               {"20", "8", "optimizer state"}};
  for (const auto& [mib, batch_size, allocation_source] : cases) {
    setenv("LATHE_EMULATOR_MEMORY_MIB", mib, 1);
    const RunResult run = TrainOn("cuda", mib, {"--per_device_train_batch_size", batch_size});
    unsetenv("LATHE_EMULATOR_MEMORY_MIB");
    ExpectError(run,
                std::string("error: [cuda] out of memory: ") + allocation_source + " asked for ");
    EXPECT_NE(run.err.find("smaller batch"), std::string::npos) << run.err;
    EXPECT_FALSE(Exists(std::string(mib) + "/model.safetensors"));
  }
}

}  // namespace
}  // namespace lathe
