// Tests what a training that goes on compares with its checkpoint, and what it only notes.
#include "lathe/train/checkpoint/resume_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/tests/tiny_bert.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

using Change = std::function<void(TrainingArguments&)>;

NamedSettings Settings(const Change& change, int64_t num_evaluated = 6) {
  TrainingArguments arguments;
  arguments.eval_strategy = "steps";
  change(arguments);
  const auto evaluation = TinyData(num_evaluated);
  return SettingsThatMatter(arguments, *TinyData(8), evaluation.get(), *TinyBert(), nullptr, 1, 16);
}

// What makes evaluations decide on the trained model.
const std::vector<std::pair<std::string, Change>> kDeciders = {
    {"plateau", [](TrainingArguments& a) { a.lr_scheduler_type = "reduce_lr_on_plateau"; }},
    {"best", [](TrainingArguments& a) { a.save_strategy = "best"; }},
    {"load", [](TrainingArguments& a) { a.load_best_model_at_end = true; }},
    {"early", [](TrainingArguments& a) { a.early_stopping_patience = 2; }}};

TEST(ResumeSettingsTest, EvaluationsThatDecideMustBeTheSame) {
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](TrainingArguments& a) { a.eval_delay = 2; }, "eval_delay was 0.0 and is 2.0"},
      {[](TrainingArguments& a) { a.greater_is_better = true; },
       "greater_is_better was false and is true"},
      {[](TrainingArguments& a) { a.eval_strategy = "epoch"; },
       "eval_strategy was steps and is epoch"},
      {[](TrainingArguments& a) { a.eval_steps = 3; }, "eval_steps was 1 and is 3"}};
  for (const auto& [name, decider] : kDeciders) {
    const NamedSettings then = Settings(decider);
    EXPECT_EQ(FirstDifference(then, Settings(decider)), std::nullopt) << name;
    EXPECT_EQ(FirstDifference(then, Settings(decider, 4)),
              "the number of rows of the validation data was 6 and is 4")
        << name;
    for (const auto& [change, difference] : changes) {
      const auto both = [decider = decider, change = change](TrainingArguments& a) {
        decider(a);
        change(a);
      };
      EXPECT_EQ(FirstDifference(then, Settings(both)), difference) << name;
    }
  }
  const auto accuracy = [](TrainingArguments& a) {
    a.load_best_model_at_end = true;
    a.metric_for_best_model = "accuracy";
  };
  EXPECT_EQ(FirstDifference(Settings(kDeciders[2].second), Settings(accuracy)),
            "the metric of the best model was eval_loss and is eval_accuracy");
}

// There are 16 steps.
TEST(ResumeSettingsTest, EvaluationsAreComparedByTheirSteps) {
  const auto with = [](double eval_steps) {
    return Settings([&](TrainingArguments& a) {
      a.load_best_model_at_end = true;
      a.eval_steps = eval_steps;
    });
  };
  EXPECT_EQ(FirstDifference(with(4), with(0.25)), std::nullopt);
  EXPECT_EQ(FirstDifference(with(4), with(0.5)), "eval_steps was 4 and is 8");
  NamedSettings older = with(4);
  for (auto& [name, value] : older)
    if (name == "eval_steps") value = "4.0";
  EXPECT_EQ(FirstDifference(older, with(4)), std::nullopt);
  EXPECT_EQ(FirstDifference(older, with(8)), "eval_steps was 4.0 and is 8");
  for (auto& [name, value] : older)
    if (name == "eval_steps") value = "0.25";
  EXPECT_EQ(FirstDifference(older, with(0.25)), std::nullopt);
}

TEST(ResumeSettingsTest, EvaluationsThatOnlyTellMayChange) {
  const auto changed = [](TrainingArguments& a) {
    a.eval_delay = 2;
    a.metric_for_best_model = "accuracy";
  };
  const auto nothing = [](TrainingArguments&) {};
  EXPECT_EQ(FirstDifference(Settings(nothing), Settings(changed, 4)), std::nullopt);
}

std::string DifferenceOf(const NamedSettings& then, const NamedSettings& now) {
  return FirstDifference(then, now).value_or("none");
}

// Thresholds turn probabilities into predictions, which only evaluations look at.
TEST(ResumeSettingsTest, ThresholdsCountOnlyWhereEvaluationsDecide) {
  const auto with = [](const Change& change, const char* key, const nlohmann::json& value) {
    TrainingArguments arguments;
    arguments.eval_strategy = "steps";
    change(arguments);
    const auto model = TinyBert();
    if (!value.is_null()) model->config().json()[key] = value;
    return SettingsThatMatter(arguments, *TinyData(8), TinyData(6).get(), *model, nullptr, 1, 16);
  };
  const auto nothing = [](TrainingArguments&) {};
  for (const char* key : {"lathe_thresholds", "lathe_temperature"}) {
    EXPECT_EQ(DifferenceOf(with(nothing, key, nullptr), with(nothing, key, 0.3)), "none");
    EXPECT_EQ(DifferenceOf(with(nothing, key, 0.4), with(nothing, key, 0.3)), "none");
    // Older versions told it whether or not evaluations decided.
    NamedSettings told = with(nothing, key, nullptr);
    told.emplace_back("the model's config " + std::string(key), "0.3");
    EXPECT_EQ(DifferenceOf(told, with(nothing, key, nullptr)), "none");
    for (const auto& [name, decider] : kDeciders) {
      const std::string start = "the model's config " + std::string(key) + " was ";
      EXPECT_EQ(DifferenceOf(with(decider, key, nullptr), with(decider, key, 0.3)),
                start + "not set and is 0.3")
          << name;
      EXPECT_EQ(DifferenceOf(with(decider, key, 0.4), with(decider, key, 0.3)),
                start + "0.4 and is 0.3")
          << name;
      // Older versions told the value if there was one.
      NamedSettings older = with(decider, key, 0.3);
      std::erase_if(older, [&](const auto& setting) { return setting.first.ends_with(key); });
      EXPECT_EQ(DifferenceOf(older, with(decider, key, 0.3)), "none") << name;
    }
  }
}

TEST(ResumeSettingsTest, OptionsOfAScheduleAreComparedAsJson) {
  const auto with = [](const std::string& text) {
    return Settings([&](TrainingArguments& a) {
      a.lr_scheduler_type = "cosine_with_min_lr";
      a.lr_scheduler_kwargs = text;
    });
  };
  const std::string plain = R"({"min_lr":1e-6,"num_cycles":1})";
  for (const char* same :
       {R"({"min_lr": 1e-6, "num_cycles": 1})", R"({"num_cycles":1.0,"min_lr":0.000001})"})
    EXPECT_EQ(DifferenceOf(with(plain), with(same)), "none") << same;
  EXPECT_EQ(DifferenceOf(with(""), with("{ }")), "none");
  EXPECT_EQ(DifferenceOf(with(plain), with(R"({"min_lr":1e-6})")),
            "lr_scheduler_kwargs was " + plain + " and is {\"min_lr\":1e-6}");
  EXPECT_NE(DifferenceOf(with("{"), with("[")), "none");
}

TEST(ResumeSettingsTest, TheNumberOfWarmupStepsCounts) {
  const auto with = [](const std::string& schedule, int64_t steps, double ratio,
                       int64_t max_steps = 10) {
    TrainingArguments arguments;
    arguments.lr_scheduler_type = schedule;
    arguments.warmup_steps = steps;
    arguments.warmup_ratio = ratio;
    return SettingsThatMatter(arguments, *TinyData(8), nullptr, *TinyBert(), nullptr, 1, max_steps);
  };
  for (const char* schedule : {"linear", "constant_with_warmup"}) {
    const NamedSettings then = with(schedule, 2, 0);
    EXPECT_EQ(DifferenceOf(then, with(schedule, 0, 0.2)), "none") << schedule;
    EXPECT_EQ(DifferenceOf(then, with(schedule, 0, 0.11)), "none") << schedule;
    EXPECT_EQ(DifferenceOf(then, with(schedule, 2, 0.5)), "none") << schedule;
    EXPECT_EQ(DifferenceOf(then, with(schedule, 0, 0.3)), "number of warmup steps was 2 and is 3");
    EXPECT_EQ(DifferenceOf(then, with(schedule, 3, 0)), "number of warmup steps was 2 and is 3");
  }
  EXPECT_EQ(DifferenceOf(with("constant", 2, 0), with("constant", 0, 0)), "none");
  EXPECT_EQ(
      DifferenceOf(with("constant_with_warmup", 0, 0.2), with("constant_with_warmup", 2, 0, 20)),
      "none");
  EXPECT_EQ(DifferenceOf(with("linear", 2, 0), with("linear", 2, 0, 20)),
            "number of steps was 10 and is 20");
  // Older versions have told the options only.
  NamedSettings older = with("linear", 2, 0);
  std::erase_if(older, [](const auto& s) { return s.first == "number of warmup steps"; });
  EXPECT_EQ(DifferenceOf(older, with("linear", 2, 0)), "none");
  EXPECT_EQ(DifferenceOf(older, with("linear", 3, 0)), "warmup_steps was 2 and is 3");
}

// A checkpoint of an older version, or of a training whose evaluations did not decide yet.
TEST(ResumeSettingsTest, SettingsOfEvaluationsCountOnlyIfBothSidesHaveThem) {
  const auto& load = kDeciders[2].second;
  const auto nothing = [](TrainingArguments&) {};
  EXPECT_EQ(FirstDifference(Settings(nothing), Settings(load)), std::nullopt);
  EXPECT_EQ(FirstDifference(Settings(load), Settings(nothing)), std::nullopt);
  NamedSettings older = Settings(kDeciders[0].second);
  const auto is_new = [](const auto& setting) {
    return setting.first.find("validation") != std::string::npos || setting.first == "eval_delay" ||
           setting.first == "greater_is_better" || setting.first == "the metric of the best model";
  };
  EXPECT_EQ(std::erase_if(older, is_new), 8u);
  EXPECT_EQ(FirstDifference(older, Settings(kDeciders[0].second)), std::nullopt);
  // Those versions told of these only for a schedule that evaluations steer.
  const auto other_steps = [](TrainingArguments& a) {
    kDeciders[0].second(a);
    a.eval_strategy = "epoch";
  };
  EXPECT_EQ(FirstDifference(older, Settings(other_steps)), "eval_strategy was steps and is epoch");
}

std::vector<std::string> Texts(const std::vector<SettingDifference>& differences) {
  std::vector<std::string> texts;
  for (const SettingDifference& difference : differences) texts.push_back(difference.text);
  return texts;
}

NamedSettings Cut(int64_t max_seq_length, int64_t rows = 8) {
  TokenizedDataset data = *TinyData(rows);
  if (max_seq_length == 64) data.offsets[1] += 1;
  return SettingsThatMatter({}, data, nullptr, *TinyBert(), nullptr, 1, 16, max_seq_length);
}

// A digest tells people nothing, so the option that has changed it is named in its place.
TEST(ResumeSettingsTest, OtherCutsOfTextsAreNamedByTheirOption) {
  const std::string cut = "max_seq_length was 128 and is 64";
  EXPECT_EQ(Texts(Differences(Cut(128), Cut(64))), std::vector<std::string>{cut});
  EXPECT_EQ(
      Texts(Differences(Cut(128), Cut(64, 6))),
      (std::vector<std::string>{cut, "the number of rows of the training data was 8 and is 6"}));
  EXPECT_EQ(FirstDifference(Cut(0), Cut(64)), "max_seq_length was auto and is 64");
  EXPECT_EQ(FirstDifference(Cut(128), Cut(0)), std::nullopt) << "no text is cut";
  NamedSettings older = Cut(128);
  EXPECT_EQ(std::erase_if(older, [](const auto& s) { return s.first == "max_seq_length"; }), 1u);
  EXPECT_EQ(FirstDifference(older, Cut(128)), std::nullopt);
  const std::vector<SettingDifference> differences = Differences(older, Cut(64));
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].setting, "the digest of training lengths");
  EXPECT_TRUE(differences[0].text.starts_with("the digest of training lengths was "))
      << differences[0].text;
}

// The value is the mistake, and not that the output folder is filled.
TEST(ResumeSettingsTest, AWishThatIsNoCheckpointIsRefusedWithAWayOut) {
  namespace fs = std::filesystem;
  const std::string out = testing::TempDir() + "resume_settings_test_out";
  fs::remove_all(out);
  fs::create_directories(out);
  CheckpointDraft(out, "checkpoint-20").Commit({.step = 20});
  TrainingArguments arguments;
  arguments.output_dir = out;
  const auto refusal = [&](const std::string& wish) -> std::string {
    arguments.resume_from_checkpoint = wish;
    try {
      return MayUseFilledOutputDir(arguments) ? "yes" : "no";
    } catch (const UsageError& e) {
      return e.message() + "|" + e.hint();
    }
  };
  const std::string takes = "resume_from_checkpoint takes true, for the newest checkpoint in " +
                            out + ", or a checkpoint's folder";
  for (const char* wish : {"TRUE", "yes", "1", "checkpoint-21"})
    EXPECT_EQ(refusal(wish), std::string(wish) + ": there is no such checkpoint|" + takes);
  EXPECT_EQ(refusal(out), out + ": is no whole checkpoint: it has no manifest.json|" + takes);
  EXPECT_EQ(refusal("checkpoint-20"), "checkpoint-20: there is no such checkpoint|did you mean " +
                                          out + "/checkpoint-20? " + takes);
  EXPECT_EQ(refusal(out + "/checkpoint-20"), "yes");
  EXPECT_EQ(refusal("true"), "yes");
  EXPECT_EQ(refusal(""), "no");
  fs::create_symlink("/unmounted/checkpoint-3", out + "/checkpoint-3");
  EXPECT_EQ(refusal(out + "/checkpoint-3"),
            out +
                "/checkpoint-3: is a link to /unmounted/checkpoint-3, which is no folder here|is "
                "the disk mounted that holds the checkpoint?");
  arguments.overwrite_output_dir = true;
  EXPECT_EQ(refusal("1"), "1: there is no such checkpoint|" + takes);
  EXPECT_EQ(refusal(""), "yes");
  fs::remove_all(out);
}

TEST(ResumeSettingsTest, NotesWhatChangesBits) {
  const ComputeSetup cpu{.num_processes = 2, .num_threads = 4, .device = "cpu"};
  EXPECT_TRUE(ChangedComputeSetup(cpu, cpu).empty());
  EXPECT_EQ(ChangedComputeSetup({.num_processes = 1, .num_threads = 1, .device = "cpu"}, cpu),
            (std::vector<std::string>{
                "the checkpoint is that of 1 process; with another number, the last digits of sums "
                "differ",
                "the checkpoint is that of 1 thread; with another number, the last digits of sums "
                "differ"}));
  EXPECT_EQ(ChangedComputeSetup({.num_processes = 2, .num_threads = 1, .device = "cuda"}, cpu),
            (std::vector<std::string>{"the checkpoint was written on the device cuda; on cpu, the "
                                      "last digits of all numbers differ"}));
  // On a GPU, threads of the host add nothing up.
  EXPECT_TRUE(ChangedComputeSetup({.num_processes = 1, .num_threads = 1, .device = "cuda"},
                                  {.num_processes = 1, .num_threads = 4, .device = "cuda"})
                  .empty());
}

TEST(ResumeSettingsTest, OlderManifestsTellLess) {
  CheckpointManifest manifest;
  manifest.world_size = 2;
  manifest.about = {{kDeviceKey, "cpu"}};
  const ComputeSetup then = ComputeSetupIn(manifest);
  EXPECT_EQ(then.num_processes, 2);
  EXPECT_EQ(then.num_threads, 0);
  EXPECT_EQ(then.device, "cpu");
  EXPECT_TRUE(
      ChangedComputeSetup(then, {.num_processes = 2, .num_threads = 4, .device = "cpu"}).empty());
  manifest.about = {{kDeviceKey, 3}, {kThreadsKey, "many"}};
  EXPECT_EQ(ComputeSetupIn(manifest).num_threads, 0);
  EXPECT_EQ(ComputeSetupIn(manifest).device, "");
}

}  // namespace
}  // namespace lathe
