// Tests that a loop of a program's own goes on from a saved state with the same bits.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/state_dict.h"
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
    std::string text = nlohmann::json(losses.values).dump();
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
    return nlohmann::json::parse(said.substr(0, said.find(']') + 1)).get<std::vector<double>>();
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

TEST(AcceleratorStateTest, AutomaticNamesLimitsAndHooks) {
  fs::remove_all(Folder("project"));
  const ProjectConfiguration project = {
      .project_dir = Folder("project"), .automatic_checkpoint_naming = true, .total_limit = 2};
  const auto results = RunRanks(2, [&](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.project = project;
    Accelerator accelerator(options);
    Wide model;
    AdamW optimizer(model.Parameters(), {});
    accelerator.Prepare(model, optimizer);
    std::string loaded;
    accelerator.RegisterSaveStatePreHook(
        [](const std::string& dir) { WriteFileAtomically(dir + "/own.txt", "mine"); });
    accelerator.RegisterLoadStatePreHook(
        [&](const std::string& dir) { loaded = ReadFile(dir + "/own.txt"); });
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(accelerator.SaveState(),
                Folder("project") + "/checkpoints/checkpoint_" + std::to_string(i));
    }
    EXPECT_EQ(accelerator.save_iteration(), 4);
    accelerator.WaitForEveryone();
    accelerator.OnMainProcess([] {
      EXPECT_FALSE(fs::exists(Folder("project") + "/checkpoints/checkpoint_1"));
      EXPECT_TRUE(fs::exists(Folder("project") + "/checkpoints/checkpoint_2"));
      fs::resize_file(Folder("project") + "/checkpoints/checkpoint_3/optimizer.h5", 10);
    });
    accelerator.WaitForEveryone();
    EXPECT_EQ(accelerator.LoadState(), Folder("project") + "/checkpoints/checkpoint_2");
    EXPECT_EQ(loaded, "mine");
    EXPECT_EQ(accelerator.save_iteration(), 3);
    // The damaged state gives way, and so does what a killed process left. A link stays.
    accelerator.OnMainProcess([] {
      fs::create_directory(Folder("project") + "/checkpoints/.checkpoint.tmp.checkpoint_3.77");
      fs::create_symlink("../kept", Folder("project") + "/checkpoints/checkpoint_1");
    });
    EXPECT_EQ(accelerator.SaveState(), Folder("project") + "/checkpoints/checkpoint_3");
    accelerator.OnMainProcess([] {
      EXPECT_NO_THROW(OpenCheckpoint(Folder("project") + "/checkpoints/checkpoint_3"));
      EXPECT_TRUE(fs::exists(Folder("project") + "/checkpoints/checkpoint_2"));
      EXPECT_TRUE(fs::is_symlink(Folder("project") + "/checkpoints/checkpoint_1"));
      EXPECT_EQ(std::distance(fs::directory_iterator(Folder("project") + "/checkpoints"), {}), 3);
    });
    return std::string();
  });
  ExpectAllWell(results);
}

// A state that is read by its name has no effect on the names of later ones, which stay free.
TEST(AcceleratorStateTest, AutomaticNamesGoOnAfterAStateOfAnyNumber) {
  fs::remove_all(Folder("project"));
  const std::string states = Folder("project") + "/checkpoints";
  const auto run = [&](const std::string& load, int64_t expected) {
    const auto results = RunRanks(2, [&](const Env& env) {
      AcceleratorOptions options = Options(env);
      options.project = {.project_dir = Folder("project"), .automatic_checkpoint_naming = true};
      Accelerator accelerator(options);
      Wide model;
      AdamW optimizer(model.Parameters(), {});
      accelerator.Prepare(model, optimizer);
      if (!load.empty()) accelerator.LoadState(load);
      EXPECT_EQ(accelerator.save_iteration(), expected);
      EXPECT_EQ(accelerator.SaveState(), states + "/checkpoint_" + std::to_string(expected));
      if (load.empty()) accelerator.SaveState();
      return std::string();
    });
    ExpectAllWell(results);
  };
  run("", 0);
  run(states + "/checkpoint_1", 2);
  run(states + "/checkpoint_0/", 3);
  fs::remove_all(Folder("copied"));
  fs::copy(states + "/checkpoint_0", Folder("copied"), fs::copy_options::recursive);
  fs::remove_all(states);
  run(Folder("copied"), 0);
}

TEST(AcceleratorStateTest, ANewStateSweepsWhatAKilledProcessLeftOfIt) {
  fs::remove_all(Folder("swept"));
  for (const char* name : {".checkpoint.tmp.x.77", ".checkpoint.tmp.y.77"})
    fs::create_directories(Folder("swept") + "/" + name);
  Loop({.save_to = Folder("swept") + "/x", .save_at = 1});
  EXPECT_FALSE(fs::exists(Folder("swept") + "/.checkpoint.tmp.x.77"));
  EXPECT_TRUE(fs::exists(Folder("swept") + "/.checkpoint.tmp.y.77"));  // another program's
}

TEST(AcceleratorStateTest, AStateOfOtherObjectsIsRefused) {
  const std::string dir = Folder("two");
  fs::remove_all(dir);
  const auto results = RunRanks(2, [&](const Env& env) {
    std::string said;
    // Prepares so many models and optimizers, and saves or loads.
    const auto run = [&](size_t num_models, size_t num_optimizers, bool loads) {
      std::vector<Wide> models(num_models);
      std::vector<std::unique_ptr<AdamW>> optimizers;
      Accelerator accelerator(Options(env));
      for (Wide& model : models) accelerator.Prepare(model);
      for (size_t i = 0; i < num_optimizers; ++i) {
        optimizers.push_back(
            std::make_unique<AdamW>(models[i].Parameters(), AdamWOptions{.lr = 0.1}));
        accelerator.Prepare(*optimizers.back());
      }
      try {
        loads ? accelerator.LoadState(dir) : accelerator.SaveState(dir);
        said += "no error|";
      } catch (const Error& e) {
        said += e.message() + "|";
      }
    };
    run(2, 2, false);
    for (const auto& [num_models, num_optimizers] :
         std::vector<std::pair<size_t, size_t>>{{2, 2}, {1, 1}, {2, 1}, {2, 0}, {3, 2}})
      run(num_models, num_optimizers, true);
    return said;
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said,
              "no error|no error|"
              "[load_state] the state has 2 models but 1 are prepared|"
              "[load_state] the state has 2 optimizers but 1 are prepared|"
              "[load_state] the state has 2 optimizers but 0 are prepared|"
              "[load_state] the state has 2 models but 3 are prepared|");
  }
}

// An object that fails in a way of its own, on the ranks that have one.
struct Failing {
  std::function<std::string()> name = [] { return std::string("good"); };
  std::function<void()> load = [] {};
  lathe::StateDict StateDict() const {
    lathe::StateDict state;
    state.values["name"] = name();
    return state;
  }
  void LoadStateDict(const lathe::StateDict&) { load(); }
};

// Other ranks wait for one that throws, whatever it throws.
TEST(AcceleratorStateTest, ExceptionsOfAnyTypeEndOnAllRanks) {
  const std::string dir = Folder("failing");
  fs::remove_all(dir);
  const auto results = RunRanks(2, [&](const Env& env) {
    Accelerator accelerator(Options(env));
    Failing object;
    accelerator.RegisterForCheckpointing(object);
    accelerator.SaveState(dir + "/good");
    std::string said;
    const auto say = [&](const std::function<void()>& call) {
      try {
        call();
        said += "no error|";
      } catch (const Error& e) {
        said += e.message() + "|";
      }
      accelerator.WaitForEveryone();
    };
    object.name = [] { return std::string("\xff"); };
    say([&] { accelerator.SaveState(dir + "/text"); });
    object.name = []() -> std::string { throw std::runtime_error("no name"); };
    say([&] { accelerator.SaveState(dir + "/name"); });
    object.name = []() -> std::string { throw std::bad_alloc(); };
    say([&] { accelerator.SaveState(dir + "/memory"); });
    object.name = []() -> std::string { throw 3; };
    say([&] { accelerator.SaveState(dir + "/number"); });
    if (env.rank == 1) object.load = [] { throw std::runtime_error("no place"); };
    say([&] { accelerator.LoadState(dir + "/good"); });
    return said;
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said, dir +
                               "/text/custom_checkpoint_0.h5: \"name\" of the state can't be "
                               "written: invalid UTF-8 byte at index 0: 0xFF|no name|"
                               "std::bad_alloc|unknown error|rank 1: no place|");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 1)
      << "a save that fails leaves nothing";
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

TEST(AcceleratorStateTest, AllRanksThrowTheSame) {
  fs::remove_all(Folder("state"));
  fs::create_directories(Folder("state"));
  const auto results = RunRanks(2, [&](const Env& env) {
    Accelerator accelerator(Options(env));
    std::string said;
    const auto say = [&](const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& e) {
        said += e.message() + "|";
      }
    };
    say([&] { accelerator.SaveState(Folder("state")); });
    say([&] { accelerator.LoadState(Folder("nowhere")); });
    say([&] { accelerator.SaveState(); });
    return said;
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said,
              "[save_state] " + Folder("state") + " is there already|" + Folder("nowhere") +
                  ": there is no such checkpoint|[save_state] name a folder, or set "
                  "automatic_checkpoint_naming and project_dir of AcceleratorOptions::project|");
  }
}

}  // namespace
}  // namespace lathe
