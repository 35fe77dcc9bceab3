// Tests that a training that goes on from a checkpoint gives the bits of one that never stopped.
// These are the model, the optimizer's state and the log.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/train/trainer_runs_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Arguments with logs, which a resume has to repeat.
TrainingArguments LoggedArguments(const std::string& folder, const Change& change = {}) {
  return Arguments(folder, [&](TrainingArguments& a) {
    a.logging_steps = 3;
    if (change) change(a);
  });
}

// Returns the log without what depends on the clock.
nlohmann::json LogOf(const std::string& dir) {
  auto state = ParseJson(ReadFile(dir + "/trainer_state.json"));
  nlohmann::json log = nlohmann::json::array();
  for (nlohmann::json entry : state.at("log_history")) {
    if (entry.contains("train_runtime")) {
      entry = {{"epoch", entry["epoch"]}, {"train_loss", entry["train_loss"]}};
    }
    for (const char* key : {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}) {
      entry.erase(key);
    }
    log.push_back(entry);
  }
  return {log, state.at("best_metric"), state.at("best_global_step"), state.at("epoch"),
          state.at("stateful_callbacks")};
}

void ExpectSameEnd(const std::string& a, const std::string& b, int64_t last_step,
                   const std::string& of) {
  EXPECT_EQ(ReadFile(Folder(a) + "/model.safetensors"), ReadFile(Folder(b) + "/model.safetensors"))
      << of;
  EXPECT_EQ(LogOf(Folder(a)), LogOf(Folder(b))) << of;
  const std::string last = "/" + CheckpointName(last_step);
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(Folder(a) + last)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".h5")) continue;
    EXPECT_EQ(ReadFile(entry.path()), ReadFile(Folder(b) + last + "/" + name)) << of << name;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

struct Case {
  const char* name;
  Change change;
  std::vector<int64_t> cuts = {3, 8};
  int64_t last_step = 16;
  int ranks = 1;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class TrainerResumeTest : public testing::TestWithParam<Case> {};

TEST_P(TrainerResumeTest, GivesTheSameBits) {
  const Case& c = GetParam();
  Remove("whole");
  Train(LoggedArguments("whole", c.change), c.ranks);
  for (const int64_t cut : c.cuts) {
    Remove("resumed");
    TrainingArguments arguments = LoggedArguments("resumed", c.change);
    arguments.resume_from_checkpoint = Folder("whole") + "/" + CheckpointName(cut);
    Train(arguments, c.ranks, arguments.resume_from_checkpoint,
          [](const Trainer& trainer) { return trainer.resumed_from(); });
    ExpectSameEnd("whole", "resumed", c.last_step, " after step " + std::to_string(cut));
  }
}

void FreezeEncoder(TrainingArguments& a) { a.freeze_layers = "encoder"; }
void Accumulate(TrainingArguments& a) { a.gradient_accumulation_steps = 3; }
void BFloat16s(TrainingArguments& a) { a.bf16 = true; }
// Stops at the fourth evaluation, after step 8: nothing improves by so much.
void StopEarly(TrainingArguments& a) {
  a.eval_strategy = "steps";
  a.eval_steps = 2;
  a.early_stopping_patience = 3;
  a.early_stopping_threshold = 1e6;
  a.load_best_model_at_end = true;
}
void HalfBatchesStopEarly(TrainingArguments& a) {
  a.per_device_train_batch_size = 1;
  StopEarly(a);
}
void LogEachEpoch(TrainingArguments& a) {
  a.logging_strategy = "epoch";
  a.eval_strategy = "epoch";
  a.eval_delay = 2;
}
void Group(TrainingArguments& a) { a.group_by_length = true; }
void Plateau(TrainingArguments& a) {
  a.lr_scheduler_type = "reduce_lr_on_plateau";
  a.lr_scheduler_kwargs = R"({"patience":0,"factor":0.5})";
  a.eval_strategy = "steps";
  a.eval_steps = 1;
  a.learning_rate = 3e-2;
}
void Sgd(TrainingArguments& a) { a.optim = "sgd"; }
void SgdWithMomentum(TrainingArguments& a) {
  Sgd(a);
  a.optim_args = "momentum=0.9,dampening=0.1";
}
void RmsProp(TrainingArguments& a) {
  a.optim = "rmsprop";
  a.optim_args = "momentum=0.9,centered=true";
  a.learning_rate = 1e-3;
}
void AdafactorOptimizer(TrainingArguments& a) { a.optim = "adafactor"; }
void HalfBatchesAdafactor(TrainingArguments& a) {
  a.per_device_train_batch_size = 1;
  AdafactorOptimizer(a);
}
void HalfBatchesLion(TrainingArguments& a) {
  a.per_device_train_batch_size = 1;
  a.optim = "lion";
}
void HalfBatchesSgd(TrainingArguments& a) {
  a.per_device_train_batch_size = 1;
  SgdWithMomentum(a);
}
void NoDecay(TrainingArguments& a) { a.weight_decay = 0; }
void HalfBatches(TrainingArguments& a) { a.per_device_train_batch_size = 1; }
void HalfBatchesAccumulate(TrainingArguments& a) {
  HalfBatches(a);
  Accumulate(a);
  BFloat16s(a);
}
void HalfBatchesUnsharded(TrainingArguments& a) {
  HalfBatches(a);
  NoDecay(a);
  a.shard_optimizer = false;
}
void HalfBatchesNoDecay(TrainingArguments& a) {
  HalfBatches(a);
  NoDecay(a);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TrainerResumeTest,
    testing::Values(Case{"float32", {}, {1, 3, 7, 8, 11, 15}},
                    Case{"accumulation", Accumulate, {1, 3, 4}, 6}, Case{"bfloat16", BFloat16s},
                    Case{"evaluation", EvaluateEachEpoch}, Case{"best", KeepTheBest},
                    Case{"early_stopping", StopEarly, {1, 2, 5, 7}, 8},
                    Case{"two_ranks_early_stopping", HalfBatchesStopEarly, {4, 7}, 8, 2},
                    Case{"frozen_encoder", FreezeEncoder}, Case{"log_epochs", LogEachEpoch},
                    Case{"lengths", Group}, Case{"plateau", Plateau}, Case{"no_decay", NoDecay},
                    Case{"sgd", Sgd}, Case{"sgd_with_momentum", SgdWithMomentum},
                    Case{"two_ranks_sgd", HalfBatchesSgd, {3}, 16, 2},
                    Case{"rmsprop", RmsProp, {3}}, Case{"adafactor", AdafactorOptimizer, {3}},
                    Case{"two_ranks_adafactor", HalfBatchesAdafactor, {3}, 16, 2},
                    Case{"two_ranks_lion", HalfBatchesLion, {3}, 16, 2},
                    Case{"two_ranks", HalfBatches, {3, 8}, 16, 2},
                    Case{"two_ranks_accumulation", HalfBatchesAccumulate, {3, 4}, 6, 2},
                    Case{"two_ranks_unsharded", HalfBatchesUnsharded, {3}, 16, 2},
                    Case{"two_ranks_no_decay", HalfBatchesNoDecay, {3}, 16, 2}),
    [](const auto& each) { return each.param.name; });

// $LATHE_RESUME_CUTS random cuts for each number of ranks, accumulation and precision; 0 if it
// isn't set.
TEST(TrainerResumeManyTest, RandomCutsGiveTheSameBits) {
  const char* cuts = std::getenv("LATHE_RESUME_CUTS");
  if (cuts == nullptr) GTEST_SKIP() << "set LATHE_RESUME_CUTS to a number of cuts";
  ASSERT_GT(std::atoi(cuts), 0) << "LATHE_RESUME_CUTS must be a number above 0 but is " << cuts;
  std::mt19937 random(42);
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t accumulation : {1, 3}) {
      for (const bool bf16 : {false, true}) {
        const auto change = [&](TrainingArguments& a) {
          a.per_device_train_batch_size = 1;
          a.num_train_epochs = 6;
          a.gradient_accumulation_steps = accumulation;
          a.bf16 = bf16;
        };
        Remove("whole");
        Train(LoggedArguments("whole", change), ranks);
        const int64_t batches = (16 + ranks - 1) / ranks;
        const int64_t steps = 6 * ((batches + accumulation - 1) / accumulation);
        for (int i = 0; i < std::atoi(cuts); ++i) {
          const int64_t cut = std::uniform_int_distribution<int64_t>(1, steps - 1)(random);
          Remove("resumed");
          TrainingArguments arguments = LoggedArguments("resumed", change);
          arguments.resume_from_checkpoint = Folder("whole") + "/" + CheckpointName(cut);
          Train(arguments, ranks);
          ExpectSameEnd("whole", "resumed", steps,
                        " after step " + std::to_string(cut) + " of " + std::to_string(ranks) +
                            " ranks, accumulation " + std::to_string(accumulation));
        }
      }
    }
  }
}

std::vector<float> ModelOf(const std::string& folder) {
  const SafetensorsReader reader(Folder(folder) + "/model.safetensors");
  std::vector<float> all;
  for (const auto& [name, entry] : reader.entries()) {
    const std::vector<float> values = reader.Read(name).ToVector<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// The losses of another number of ranks differ in their last digits only.
TEST(TrainerResumeRanksTest, AnyNumberOfRanksGoesOn) {
  Remove("whole");
  Train(LoggedArguments("whole"));
  for (const auto& [before, after] : {std::pair(1, 2), std::pair(2, 1)}) {
    Remove("first");
    Remove("second");
    Train(LoggedArguments("first", before == 2 ? Change(HalfBatches) : Change()), before);
    TrainingArguments arguments =
        LoggedArguments("second", after == 2 ? Change(HalfBatches) : Change());
    arguments.resume_from_checkpoint = Folder("first") + "/checkpoint-5";
    Train(arguments, after);
    const auto whole = ParseJson(ReadFile(Folder("whole") + "/trainer_state.json"));
    const auto resumed = ParseJson(ReadFile(Folder("second") + "/trainer_state.json"));
    ASSERT_EQ(whole["log_history"].size(), resumed["log_history"].size());
    for (size_t i = 0; i + 1 < whole["log_history"].size(); ++i) {
      EXPECT_NEAR(whole["log_history"][i]["loss"].get<double>(),
                  resumed["log_history"][i]["loss"].get<double>(), 2e-6);
    }
    const std::vector<float> a = ModelOf("whole"), b = ModelOf("second");
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
    EXPECT_LT(largest, 1e-4);
  }
}

}  // namespace
}  // namespace lathe
