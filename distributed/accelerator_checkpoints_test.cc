// Tests that a loop of a program's own goes on from a saved state with the same bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

std::string Folder(const std::string& name) {
  return testing::TempDir() + "accelerator_checkpoints_test/" + name;
}

// The program's own state.
struct Losses {
  std::vector<double> values;
  lathe::StateDict StateDict() const {
    lathe::StateDict state;
    state.values["losses"] = values;
    return state;
  }
  void LoadStateDict(const lathe::StateDict& state) {
    values = state.Get<std::vector<double>>("losses", "losses");
  }
};

struct LoopOptions {
  int ranks = 1;
  std::string save_to = {};  // after step `save_at`
  int save_at = 0;
  std::string load_from = {};
  ProjectConfiguration project = {};
  int64_t width = Wide::kIn;
};

// Trains for 3 epochs of 4 batches, or fewer after a load. Returns the losses and the parameters.
std::string Loop(const LoopOptions& options) {
  const auto results = RunRanks(options.ranks, [&](const Env& env) {
    AcceleratorOptions accelerator_options = Sharded(env);
    accelerator_options.project = options.project;
    Accelerator accelerator(accelerator_options);
    Wide model(options.width);
    AdamW optimizer(model.Parameters(), {.lr = 1e-2});
    auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 12});
    DataLoader train(Data(16), {.batch_size = 4, .shuffle = true});
    Losses losses;
    accelerator.Prepare(train, model, optimizer, *scheduler);
    accelerator.RegisterForCheckpointing(losses);
    if (!options.load_from.empty()) accelerator.LoadState(options.load_from);
    while (train.epoch() < 3) {
      for (const Batch& batch : train) {
        double sum = 0;  // the batch is this rank's share
        for (const int64_t index : batch.indices) sum += static_cast<double>(index + 1) / 16;
        accelerator.Backward(model.Loss(sum / static_cast<double>(batch.indices.size())));
        optimizer.Step();
        scheduler->Step();
        optimizer.ZeroGrad();
        losses.values.push_back(accelerator.last_loss());
        if (std::ssize(losses.values) == options.save_at) accelerator.SaveState(options.save_to);
      }
    }
    std::string text = DumpJson(nlohmann::json(losses.values));
    for (const float w : model.weight.ToVector<float>()) text += " " + ExactText(w);
    return text;
  });
  ExpectAllWell(results);
  return results[0].said;
}

TEST(AcceleratorStateTest, GoesOnWithTheSameBits) {
  for (const int ranks : {1, 2}) {
    const std::string whole = Loop({.ranks = ranks});
    for (const int step : {1, 4, 6}) {
      fs::remove_all(Folder("state"));
      EXPECT_EQ(Loop({.ranks = ranks, .save_to = Folder("state"), .save_at = step}), whole);
      EXPECT_NO_THROW(OpenCheckpoint(Folder("state")));
      EXPECT_EQ(Loop({.ranks = ranks, .load_from = Folder("state")}), whole)
          << step << " of " << ranks;
    }
  }
}

// Returns the steps of the batches of a pass.
std::string StepsOf(DataLoader<Batch>& loader) {
  std::string steps;
  for (const Batch& batch : loader) steps += " " + std::to_string(batch.step);
  return steps;
}

// LoadState has placed the loader already, and the copy begins at the same place.
TEST(AcceleratorStateTest, SkippingAfterALoadLeavesTheNextEpochWhole) {
  fs::remove_all(Folder("state"));
  const auto results = RunRanks(2, [&](const Env& env) {
    {
      Accelerator accelerator(Options(env));
      DataLoader train(Data(20), {.batch_size = 4, .shuffle = true});
      accelerator.Prepare(train);
      int batches = 0;
      for (const Batch& batch : train) {
        static_cast<void>(batch);
        if (++batches < 3) continue;
        accelerator.SaveState(Folder("state"));
        break;
      }
    }
    Accelerator accelerator(Options(env));
    DataLoader train(Data(20), {.batch_size = 4, .shuffle = true});
    accelerator.Prepare(train);
    accelerator.LoadState(Folder("state"));
    DataLoader rest = accelerator.SkipFirstBatches(train, 3);
    const std::string first = StepsOf(rest);
    return first + "|" + StepsOf(train);
  });
  for (const RankResult& result : results) EXPECT_EQ(result.said, " 3 4| 5 6 7 8 9");
}

// The copy isn't prepared, but its place is that of the loader whose epoch it gives.
TEST(AcceleratorStateTest, AStateOfALoopOverTheRestGoesOnThere) {
  const std::string dir = Folder("rest");
  for (const bool sets_epochs : {false, true}) {
    fs::remove_all(dir);
    const auto results = RunRanks(2, [&](const Env& env) {
      {
        Accelerator accelerator(Options(env));
        DataLoader train(Data(20), {.batch_size = 4, .shuffle = true});
        accelerator.Prepare(train);
        DataLoader rest = accelerator.SkipFirstBatches(train, 2);
        if (sets_epochs) train.SetEpoch(0);
        accelerator.SaveState(dir + "/before");
        for (const Batch& batch : rest)
          accelerator.SaveState(dir + "/" + std::to_string(batch.step));
        if (sets_epochs) train.SetEpoch(1);
        accelerator.SaveState(dir + "/after");
        for (const Batch& batch : train) {
          if (batch.step == 6) accelerator.SaveState(dir + "/6");
        }
      }
      std::string said;
      for (const char* state : {"before", "2", "3", "4", "after", "6"}) {
        Accelerator accelerator(Options(env));
        DataLoader train(Data(20), {.batch_size = 4, .shuffle = true});
        accelerator.Prepare(train);
        accelerator.LoadState(dir + "/" + state);
        said += StepsOf(train) + "|";
      }
      return said;
    });
    for (const RankResult& result : results)
      EXPECT_EQ(result.said, " 2 3 4| 3 4| 4| 5 6 7 8 9| 5 6 7 8 9| 7 8 9|");
  }
}

TEST(AcceleratorStateTest, AnyNumberOfRanksReadsIt) {
  fs::remove_all(Folder("state"));
  // Each loss is a sum of 512 equal terms, which each addition rounds by 6e-8 at most. Without the
  // optimizer's moments the losses would differ by more than 1e-3.
  constexpr int64_t kWidth = 512;
  constexpr double kTolerance = kWidth * 6e-8;
  const std::string whole =
      Loop({.ranks = 2, .save_to = Folder("state"), .save_at = 6, .width = kWidth});
  const std::string one = Loop({.ranks = 1, .load_from = Folder("state"), .width = kWidth});
  const std::string three = Loop({.ranks = 3, .load_from = Folder("state"), .width = kWidth});
  const auto losses = [](const std::string& said) {
    return ParseJson(said.substr(0, said.find(']') + 1)).get<std::vector<double>>();
  };
  const std::vector<double> expected = losses(whole);
  for (const std::string& said : {one, three}) {
    const std::vector<double> found = losses(said);
    ASSERT_EQ(found.size(), 12u);
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i] / expected[i], 1, kTolerance) << i;
    }
  }
}

TEST(AcceleratorStateTest, EveryPrefixOfEachSmallFileIsFound) {
  fs::remove_all(Folder("state"));
  Loop({.save_to = Folder("state"), .save_at = 6});
  int files = 0;
  for (const auto& entry : fs::directory_iterator(Folder("state"))) {
    const std::string path = entry.path(), whole = ReadFile(path);
    // Each size of the small ones, and some of the others.
    const size_t stride = whole.size() <= 8192 ? 1 : whole.size() / 500;
    // The manifest without its last newline still is the manifest.
    const size_t end = whole.size() - (path.ends_with(kManifestFile) ? 1 : 0);
    std::vector<size_t> sizes;
    for (size_t size = 0; size < end; size += stride) sizes.push_back(size);
    for (size_t i = sizes.size(); i-- > 0;) {
      fs::resize_file(path, sizes[i]);
      try {
        OpenCheckpoint(Folder("state"));
        FAIL() << path << " cut to " << sizes[i] << " is taken";
      } catch (const Error& e) {
        ASSERT_TRUE(e.message().starts_with(path + ": ")) << e.message();
      }
    }
    WriteFileAtomically(path, whole);
    ++files;
  }
  EXPECT_NO_THROW(OpenCheckpoint(Folder("state")));
  EXPECT_GE(files, 6);  // model, optimizer, scheduler, loader, the program's own, manifest
}

TEST(AcceleratorStateTest, ANewStateSweepsWhatAKilledProcessLeftOfIt) {
  fs::remove_all(Folder("swept"));
  for (const char* name : {".checkpoint.tmp.x.77", ".checkpoint.tmp.y.77"})
    fs::create_directories(Folder("swept") + "/" + name);
  Loop({.save_to = Folder("swept") + "/x", .save_at = 1});
  EXPECT_FALSE(fs::exists(Folder("swept") + "/.checkpoint.tmp.x.77"));
  EXPECT_TRUE(fs::exists(Folder("swept") + "/.checkpoint.tmp.y.77"));  // another program's
}

// The usual start of the best value so far.
TEST(AcceleratorStateTest, InfiniteNumbersComeBack) {
  const std::string dir = Folder("infinite");
  fs::remove_all(dir);
  ExpectAllWell(RunRanks(1, [&](const Env& env) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Losses losses{{kInfinity, -kInfinity, 0.5}};
    Accelerator accelerator(Options(env));
    accelerator.RegisterForCheckpointing(losses);
    accelerator.SaveState(dir);
    losses.values.clear();
    accelerator.LoadState(dir);
    EXPECT_EQ(losses.values, (std::vector<double>{kInfinity, -kInfinity, 0.5}));
    return std::string();
  }));
}

}  // namespace
}  // namespace lathe
