#include "lathe/train/callbacks/model_card_callback.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lathe/core/base/file.h"
#include "lathe/train/support/output_dir.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

class ModelCardCallbackTest : public testing::Test {
 protected:
  ModelCardCallbackTest() : folder_(testing::TempDir() + "/cards" + std::to_string(getpid())) {
    fs::create_directories(folder_ + "/my: model");
    arguments_.output_dir = folder_ + "/my: model/";
    arguments_.learning_rate = 0.25;
    for (const auto& [step, loss] : {std::pair(5, 0.125), std::pair(10, 0.75)}) {
      state_.global_step = step;
      state_.Log({{"eval_loss", loss}});
    }
  }
  ~ModelCardCallbackTest() override { fs::remove_all(folder_); }

  std::string Path() const { return arguments_.output_dir + "README.md"; }
  bool Has(const std::string& part) const {
    return ReadFile(Path()).find(part) != std::string::npos;
  }
  void End(ModelCardCallback& callback) { callback.OnTrainEnd(arguments_, state_, control_); }

  std::string folder_;
  TrainingArguments arguments_;
  TrainerState state_;
  TrainerControl control_;
};

TEST_F(ModelCardCallbackTest, WritesTheLastEvaluationOrThatOfTheBestModel) {
  ModelCardCallback callback;
  End(callback);
  EXPECT_TRUE(Has("\n# my: model\n"));
  EXPECT_TRUE(Has("\n- learning_rate: 0.25\n"));
  EXPECT_TRUE(Has("\n- Loss: 0.75\n"));
  state_.best_global_step = 5;
  End(callback);
  EXPECT_TRUE(Has("\n- Loss: 0.75\n"));
  arguments_.load_best_model_at_end = true;
  End(callback);
  EXPECT_TRUE(Has("\n- Loss: 0.125\n"));
  state_.best_model_is_gone = true;
  End(callback);
  EXPECT_TRUE(Has("\n- Loss: 0.75\n"));
  EXPECT_TRUE(callback.Write(arguments_, state_, {{"eval_loss", 0.5}}).empty());
  EXPECT_TRUE(Has("\n- Loss: 0.5\n"));
  EXPECT_TRUE(control_.warnings.empty());
  EXPECT_FALSE(callback.SetsControl());
}

TEST_F(ModelCardCallbackTest, LeavesAnEditedCardAloneAndSaysSoOnce) {
  ModelCardCallback callback;
  End(callback);
  std::ofstream(Path(), std::ios::app) << "My own words.\n";
  const std::string edited = ReadFile(Path());
  End(callback);
  End(callback);
  EXPECT_EQ(ReadFile(Path()), edited);
  ASSERT_EQ(control_.warnings.size(), 1u);
  EXPECT_EQ(control_.warnings[0],
            "warning: " + Path() +
                " was edited or is "
                "not Lathe's, so it stays as it is; remove it to get a new card");
}

TEST_F(ModelCardCallbackTest, WarnsIfTheCardCannotBeWritten) {
  arguments_.output_dir = folder_ + "/gone";
  ModelCardCallback callback;
  End(callback);
  ASSERT_EQ(control_.warnings.size(), 1u);
  EXPECT_EQ(control_.warnings[0], "warning: no model card was written: " + folder_ +
                                      "/gone/README.md: No such file or directory");
}

TEST_F(ModelCardCallbackTest, WritesNothingElsewhere) {
  ModelCardCallback callback;
  state_.is_world_process_zero = false;
  End(callback);
  EXPECT_FALSE(fs::exists(Path()));
  state_.is_world_process_zero = true;
  arguments_.output_dir = "";
  End(callback);
  EXPECT_TRUE(control_.warnings.empty());
}

// A card tells of one model, so it doesn't stay beside another one.
TEST_F(ModelCardCallbackTest, AnOldCardLeavesWithItsModelUnlessItWasEdited) {
  ModelCardCallback callback;
  OutputDir out(arguments_.output_dir, /*allow_existing=*/true);
  const auto replace = [&] {
    out.Replace([](const std::string& dir) { WriteFileAtomically(dir + "/config.json", "{}"); });
  };
  End(callback);
  replace();
  EXPECT_FALSE(fs::exists(Path()));
  std::ofstream(Path()) << "# Mine\n";
  replace();
  EXPECT_EQ(ReadFile(Path()), "# Mine\n");
}

}  // namespace
}  // namespace lathe
