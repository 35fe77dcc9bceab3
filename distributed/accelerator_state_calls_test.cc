// Tests the calls SaveState and LoadState: the names of states, limits, hooks, and errors on all
// ranks.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
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
  return testing::TempDir() + "accelerator_state_calls_test/" + name;
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
