// The Accelerator's trackers, with one rank and with several.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A program's own tracker. It writes down its calls.
class Notes : public Tracker {
 public:
  std::string name() const override { return "notes"; }
  void Start(const Json& hyperparameters) override { text += "start " + DumpJson(hyperparameters); }
  void Log(const Json& values, std::optional<int64_t> step) override {
    text += "; " + DumpJson(values) + (step ? " at " + std::to_string(*step) : "");
  }
  void Finish() override { text += "; end"; }
  std::string text;
};

std::string Folder(const std::string& name) {
  return testing::TempDir() + "/" + name + std::to_string(getpid());
}

std::vector<Json> Lines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(ParseJson(line));
  return lines;
}

TEST(AcceleratorTrackers, OnlyTheMainProcessWrites) {
  const std::string folder = Folder("trackers");
  ExpectAllWell(RunRanks(2, [&](const Env& env) {
    const auto notes = std::make_shared<Notes>();
    AcceleratorOptions options = Options(env);
    options.log_with = {"all"};
    options.trackers = {notes};
    options.project.logging_dir = folder;
    Accelerator accelerator(options);
    accelerator.Log({{"early", 1}}, 1);  // before InitTrackers
    accelerator.InitTrackers("sst2", {{"learning_rate", 0.5}});
    accelerator.Log({{"loss", 0.25}}, 3);
    if (env.rank == 0) accelerator.Log({{"note", "no step"}});  // no collective
    accelerator.EndTraining();
    accelerator.Log({{"late", 1}}, 4);
    EXPECT_EQ(notes->text, env.rank == 0 ? "start {\"learning_rate\":0.5}; {\"loss\":0.25} at 3; "
                                           "{\"note\":\"no step\"}; end"
                                         : "");
    return std::string();
  }));
  const std::vector<Json> lines = Lines(folder + "/sst2/metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].at("hyperparameters"), Json({{"learning_rate", 0.5}}));
  EXPECT_EQ(lines[1].at("step"), 3);
  EXPECT_EQ(lines[1].at("loss"), 0.25);
  EXPECT_FALSE(lines[2].contains("step"));
  int event_files = 0;
  for (const auto& entry : fs::directory_iterator(folder + "/sst2"))
    event_files += entry.path().filename().string().starts_with("events.out.tfevents.") ? 1 : 0;
  EXPECT_EQ(event_files, 1);
  fs::remove_all(folder);
}

TEST(AcceleratorTrackers, RunAgainAfterEndTraining) {
  ExpectAllWell(RunRanks(1, [](const Env& env) {
    const auto notes = std::make_shared<Notes>();
    AcceleratorOptions options = Options(env);
    options.trackers = {notes};  // needs no folder
    Accelerator accelerator(options);
    accelerator.InitTrackers("");
    EXPECT_THROW(accelerator.InitTrackers(""), Error);
    accelerator.EndTraining();
    accelerator.InitTrackers("");
    EXPECT_EQ(notes->text, "start {}; endstart {}");
    EXPECT_THROW(accelerator.Log({1, 2}), Error);
    EXPECT_THROW(accelerator.InitTrackers("", {1, 2}), Error);
    return std::string();
  }));
}

TEST(AcceleratorTrackers, AFolderThatCannotBeWrittenIsOneLine) {
  const std::string file = Folder("file");
  std::ofstream(file) << "x";
  ExpectAllWell(RunRanks(2, [&](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.log_with = {"tensorboard", "jsonl"};
    options.project.project_dir = file;
    Accelerator accelerator(options);
    const std::string err = CaptureStderr([&] {
      accelerator.InitTrackers("run");
      accelerator.Log({{"loss", 0.25}}, 3);
      accelerator.EndTraining();
    });
    EXPECT_EQ(err, env.rank != 0 ? ""
                                 : "warning: tensorboard and jsonl can't start: " + file +
                                       "/run: Not a directory; training goes on without it\n");
    return std::string();
  }));
  fs::remove(file);
}

TEST(AcceleratorTrackers, OptionsAreChecked) {
  ExpectAllWell(RunRanks(1, [](const Env& env) {
    const auto error_of = [&](std::vector<std::string> log_with) -> std::string {
      AcceleratorOptions options = Options(env);
      options.log_with = std::move(log_with);
      try {
        Accelerator accelerator(options);
      } catch (const Error& e) {
        return e.message();
      }
      return "";
    };
    EXPECT_EQ(error_of({"tensorboard"}), "[accelerator] log_with needs a folder to write to");
    EXPECT_EQ(error_of({"wandb"}),
              "[accelerator] log_with must be tensorboard, jsonl, all or none "
              "but is \"wandb\"");
    EXPECT_EQ(error_of({"none"}), "");
    return std::string();
  }));
}

}  // namespace
}  // namespace lathe
