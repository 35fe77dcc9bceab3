#include "lathe/apps/options/refused_values.h"

#include <absl/strings/str_split.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "lathe/apps/options/options.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/optim/schedules.h"
#include "lathe/train/support/optimizer_arguments.h"

namespace lathe {
namespace {

using Names = std::vector<std::string>;

// The values of OptimizerNames, SchedulerType and the trackers of Transformers 5.24.
const Names kOptimizers = {"adamw_torch",
                           "adamw_torch_fused",
                           "adamw_torch_xla",
                           "adamw_torch_npu_fused",
                           "adafactor",
                           "adamw_anyprecision",
                           "adamw_torch_4bit",
                           "adamw_torch_8bit",
                           "ademamix",
                           "sgd",
                           "adagrad",
                           "adamw_bnb_8bit",
                           "adamw_8bit",
                           "ademamix_8bit",
                           "lion_8bit",
                           "lion_32bit",
                           "paged_adamw_32bit",
                           "paged_adamw_8bit",
                           "paged_ademamix_32bit",
                           "paged_ademamix_8bit",
                           "paged_lion_32bit",
                           "paged_lion_8bit",
                           "rmsprop",
                           "rmsprop_bnb",
                           "rmsprop_bnb_8bit",
                           "rmsprop_bnb_32bit",
                           "galore_adamw",
                           "galore_adamw_8bit",
                           "galore_adafactor",
                           "galore_adamw_layerwise",
                           "galore_adamw_8bit_layerwise",
                           "galore_adafactor_layerwise",
                           "lomo",
                           "adalomo",
                           "grokadamw",
                           "schedule_free_radam",
                           "schedule_free_adamw",
                           "schedule_free_sgd",
                           "apollo_adamw",
                           "apollo_adamw_layerwise",
                           "stable_adamw"};
const Names kSchedules = {"linear",
                          "cosine",
                          "cosine_with_restarts",
                          "polynomial",
                          "constant",
                          "constant_with_warmup",
                          "inverse_sqrt",
                          "reduce_lr_on_plateau",
                          "cosine_with_min_lr",
                          "cosine_warmup_with_min_lr",
                          "warmup_stable_decay",
                          "greedy"};
const Names kTrackers = {"azure_ml", "comet_ml", "mlflow",  "neptune", "tensorboard",
                         "trackio",  "wandb",    "clearml", "dagshub", "codecarbon",
                         "flyte",    "dvclive",  "swanlab", "kubeflow"};

// Returns the error that the command line causes.
std::pair<std::string, std::string> ErrorOf(const Names& more) {
  Names args = {"--model_name_or_path", "m", "--train_file", "t.csv", "--do_train",
                "--output_dir",         "o"};
  args.insert(args.end(), more.begin(), more.end());
  try {
    ParseOptions(args);
  } catch (const Error& e) {
    return {e.message(), e.hint()};
  }
  return {};
}

TEST(RefusedValuesTest, EveryValueOfTransformersIsTakenOrRefusedWithAReason) {
  struct Case {
    std::string option;
    Names all, taken;
  };
  for (const Case& c : {Case{"optim", kOptimizers, OptimizerNames()},
                        Case{"lr_scheduler_type", kSchedules, ScheduleNames()},
                        Case{"report_to", kTrackers, {"tensorboard", "jsonl", "all", "none"}}}) {
    int refused = 0;
    for (const std::string& value : c.all) {
      if (std::ranges::find(c.taken, value) != c.taken.end()) {
        // Some of these need other options, too.
        EXPECT_EQ(ErrorOf({"--" + c.option, value}).first.find("not supported"), std::string::npos);
        continue;
      }
      ++refused;
      const auto [message, hint] = ErrorOf({"--" + c.option, value});
      EXPECT_TRUE(message.starts_with("--" + c.option + " " + value + " is not supported: "))
          << value << ": " << message;
      EXPECT_NE(hint.find("; --" + c.option + " takes "), std::string::npos) << hint;
      for (const std::string& name : c.taken)
        EXPECT_NE(hint.find(name), std::string::npos) << name << ": " << hint;
    }
    EXPECT_GE(refused, 2) << c.option;
  }
}

TEST(RefusedValuesTest, EachIsInTheTableOnce) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const RefusedValue& row : RefusedValues()) {
    EXPECT_FALSE(row.reason.empty());
    EXPECT_FALSE(row.instead.empty());
    const Names values = absl::StrSplit(std::string(row.values), '|');
    for (const std::string& value : values)
      EXPECT_TRUE(seen.emplace(std::string(row.option), value).second) << value;
  }
  for (const std::string& name : OptimizerNames()) EXPECT_FALSE(seen.contains({"optim", name}));
  for (const std::string& name : ScheduleNames())
    EXPECT_FALSE(seen.contains({"lr_scheduler_type", name}));
}

TEST(RefusedValuesTest, ReasonsOfSome) {
  EXPECT_EQ(ErrorOf({"--optim", "rmsprop_bnb"}),
            std::pair(std::string("--optim rmsprop_bnb is not supported: it is RMSprop in a "
                                  "library for GPUs"),
                      std::string("pass --optim rmsprop, the same update in float32; --optim takes "
                                  "adamw_torch, adamw_torch_fused, adamw_hf, sgd, adafactor, lion, "
                                  "rmsprop, adagrad")));
  EXPECT_EQ(ErrorOf({"--report_to", "tensorboard,wandb"}),
            std::pair(std::string("--report_to wandb is not supported: Lathe sends nothing to a "
                                  "service"),
                      std::string("pass --report_to tensorboard or jsonl, and import the files "
                                  "there; --report_to takes tensorboard, jsonl, all or none")));
  // Slips are still told the nearest name.
  EXPECT_EQ(ErrorOf({"--optim", "adamw_troch"}).second, "did you mean adamw_torch?");
}

TEST(RefusedValuesTest, AFileOfArgumentsIsNamed) {
  const std::string path =
      testing::TempDir() + "/refused_values_test_" + std::to_string(getpid()) + ".json";
  WriteFileAtomically(path, R"({"optim": "lomo"})");
  const std::string message = ErrorOf({"--json_config", path}).first;
  std::remove(path.c_str());
  EXPECT_TRUE(message.starts_with(path + ": --optim lomo is not supported: ")) << message;
}

}  // namespace
}  // namespace lathe
