// Tests what SaveState refuses, since nobody could go on from it.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

std::string Folder(const std::string& name) {
  return testing::TempDir() + "accelerator_state_refusals_test/" + name;
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.message() + "|" + e.hint();
  }
  return "";
}

// The gradients of an open window are in no state, but their batches lie behind the saved place.
TEST(AcceleratorStateRefusals, AnOpenWindow) {
  fs::remove_all(Folder("window"));
  const auto results = RunRanks(2, [&](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.gradient_accumulation_steps = 2;
    Accelerator accelerator(options);
    Wide model;
    AdamW optimizer(model.Parameters(), {});
    DataLoader train(Data(24), {.batch_size = 4});
    accelerator.Prepare(train, model, optimizer);
    std::string said;
    int batches = 0;
    for (const Batch& batch : train) {
      {
        const auto accumulation = accelerator.Accumulate(model);
        accelerator.Backward(model.Loss(static_cast<double>(batch.indices.size())));
        optimizer.Step();
        optimizer.ZeroGrad();
      }
      ++batches;
      const std::string dir = Folder("window/") + std::to_string(batches);
      said += ErrorOf([&] { accelerator.SaveState(dir); }).empty() ? "saved " : "refused ";
    }
    {
      const auto local = accelerator.NoSync(model);
      accelerator.Backward(model.Loss(1));
    }
    return said + ErrorOf([&] { accelerator.SaveState(Folder("window/local")); });
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said,
              "refused saved refused saved refused saved "
              "[save_state] gradients of batches that no step has used yet can't be saved|call "
              "SaveState where sync_gradients() is true, after Step or ZeroGrad of each optimizer");
  }
}

// The window of a loop that accumulates by hand is open until the optimizer's step.
TEST(AcceleratorStateRefusals, GradientsThatNoStepHasUsed) {
  fs::remove_all(Folder("unused"));
  for (const int ranks : {1, 2}) {
    const auto results = RunRanks(ranks, [&](const Env& env) {
      Accelerator accelerator(Options(env));
      Wide model;
      AdamW optimizer(model.Parameters(), {});
      accelerator.Prepare(model, optimizer);
      std::string said;
      const auto save = [&](const std::string& name) {
        const std::string dir = Folder("unused/") + std::to_string(ranks) + name;
        said += name + (ErrorOf([&] { accelerator.SaveState(dir); }).empty() ? " " : "-no ");
      };
      save("begin");
      for (int step = 0; step < 2; ++step) {
        accelerator.Backward(model.Loss(1));
        save("first" + std::to_string(step));
        accelerator.Backward(model.Loss(2));
        save("second" + std::to_string(step));
        optimizer.Step();
        save("stepped" + std::to_string(step));
        optimizer.ZeroGrad();
        save("zeroed" + std::to_string(step));
      }
      accelerator.Backward(model.Loss(1));
      optimizer.ZeroGrad();  // the program leaves out a step
      save("dropped");
      return said;
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.said,
                "begin first0-no second0-no stepped0 zeroed0 first1-no second1-no stepped1 zeroed1 "
                "dropped ");
    }
  }
}

// One of two optimizers has stepped, and the other one has not.
TEST(AcceleratorStateRefusals, GradientsThatOneOptimizerHasNotUsed) {
  fs::remove_all(Folder("two"));
  Accelerator accelerator;
  Wide first, second;
  AdamW of_first(first.Parameters(), {}), of_second(second.Parameters(), {});
  accelerator.Prepare(first, second, of_first, of_second);
  accelerator.Backward(first.Loss(1));
  accelerator.Backward(second.Loss(1));
  of_first.Step();
  EXPECT_NE(ErrorOf([&] { accelerator.SaveState(Folder("two/half")); }), "");
  of_second.Step();
  EXPECT_EQ(ErrorOf([&] { accelerator.SaveState(Folder("two/whole")); }), "");
}

// A loop goes back to a state, at the end of a window or within one.
TEST(AcceleratorStateRefusals, ALoadClosesTheWindow) {
  const auto run = [&](int back_after) {
    fs::remove_all(Folder("back"));
    const auto results = RunRanks(2, [&](const Env& env) {
      AcceleratorOptions options = Options(env);
      options.gradient_accumulation_steps = 2;
      Accelerator accelerator(options);
      Wide model;
      AdamW optimizer(model.Parameters(), {.lr = 1e-2});
      DataLoader train(Data(36), {.batch_size = 4, .shuffle = true});
      accelerator.Prepare(train, model, optimizer);
      const auto train_until = [&](int last) {
        int batches = 0;
        for (const Batch& batch : train) {
          {
            const auto accumulation = accelerator.Accumulate(model);
            double sum = 0;
            for (const int64_t index : batch.indices) sum += static_cast<double>(index + 1);
            accelerator.Backward(model.Loss(sum / static_cast<double>(batch.indices.size())));
            optimizer.Step();
            optimizer.ZeroGrad();
          }
          if (++batches == 4 && last > 0) accelerator.SaveState(Folder("back"));
          if (batches == last) return;
        }
      };
      train_until(back_after);
      accelerator.LoadState(Folder("back"));
      train_until(0);
      return ExactText(model.weight.ToVector<float>()[7]) + " " +
             std::to_string(accelerator.last_loss());
    });
    ExpectAllWell(results);
    return results[0].said;
  };
  EXPECT_EQ(run(7), run(6));
}

// Otherwise the second or third state would meet one of the earlier program.
TEST(AcceleratorStateRefusals, AutomaticNamesOfAnEarlierProgram) {
  fs::remove_all(Folder("project"));
  const auto save = [&](int64_t iteration, bool load) {
    AcceleratorOptions options;
    options.project = {.project_dir = Folder("project"),
                       .automatic_checkpoint_naming = true,
                       .iteration = iteration};
    Accelerator accelerator(options);
    if (load) accelerator.LoadState();
    return ErrorOf([&] {
      accelerator.SaveState();
      accelerator.SaveState();
    });
  };
  const std::string last = Folder("project") + "/checkpoints/checkpoint_";
  EXPECT_EQ(save(0, true), "");
  EXPECT_EQ(save(0, false),
            "[save_state] " + last +
                "1 is there already, from an earlier program|go on from it "
                "with LoadState(), or set iteration of AcceleratorOptions::project to 2, or choose "
                "another project_dir");
  EXPECT_EQ(save(2, false), "");
  EXPECT_EQ(save(0, true), "");
  EXPECT_TRUE(fs::exists(last + "5"));
}

// A program's own object or hook leaves something that would not come back.
TEST(AcceleratorStateRefusals, WhatWouldNotComeBack) {
  struct Own {
    lathe::StateDict state;
    const lathe::StateDict& StateDict() const { return state; }
    void LoadStateDict(const lathe::StateDict& loaded) { state = loaded; }
  } own;
  Accelerator accelerator;
  accelerator.RegisterForCheckpointing(own);
  std::string left;  // by the hook
  accelerator.RegisterSaveStatePreHook([&](const std::string& dir) {
    if (!left.empty()) WriteFileAtomically(dir + "/" + left, "text");
  });
  const auto save = [&] {
    fs::remove_all(Folder("own"));
    std::string error = ErrorOf([&] { accelerator.SaveState(Folder("own")); });
    EXPECT_EQ(fs::exists(Folder("own")), error.empty());
    return error.substr(0, error.find('|'));
  };
  own.state.values = {1, 2};
  EXPECT_EQ(save(), Folder("own") +
                        "/custom_checkpoint_0.h5: the values of a state must be a JSON "
                        "object but are of type array");
  own.state.values = nlohmann::json();
  EXPECT_EQ(save(), "");
  accelerator.LoadState(Folder("own"));
  EXPECT_TRUE(own.state.values.is_object());
  left = "manifest.json";
  EXPECT_EQ(save(), Folder("own") +
                        "/manifest.json: this name is for the checkpoint's own list of "
                        "files");
  left = "notes.txt";
  EXPECT_EQ(save(), "");
  accelerator.LoadState(Folder("own"));
}

}  // namespace
}  // namespace lathe
