#include "lathe/core/trackers/tracker_list.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/trackers/append_file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

// Writes down its calls, and fails at those that it is told to.
class FakeTracker : public Tracker {
 public:
  FakeTracker(std::string name, std::string fails)
      : name_(std::move(name)), fails_(std::move(fails)) {}
  std::string name() const override { return name_; }
  void Start(const Json&) override { Call("start"); }
  void Log(const Json&, std::optional<int64_t>) override { Call("log"); }
  void Finish() override { Call("finish"); }

  std::string calls;

 private:
  void Call(const std::string& call) {
    calls += call + ' ';
    if (call != fails_) return;
    if (name_ == "plain") throw std::runtime_error("no network\nand a second line");
    throw Error(NotFound("[op] gone", "a hint"));
  }
  std::string name_, fails_;
};

struct FakeRun {
  FakeRun(const std::string& first, const std::string& second)
      : a(std::make_shared<FakeTracker>("plain", first)),
        b(std::make_shared<FakeTracker>("own", second)),
        list({a, b}, [this](const std::string& line) { warnings.push_back(line); }) {
    list.Start(Json::object());
    list.Log({{"a", 1}}, 1);
    list.Log({{"a", 1}}, 2);
    list.Finish();
  }
  Names warnings;
  std::shared_ptr<FakeTracker> a, b;
  TrackerList list;
};

TEST(TrackerList, CallsAllTrackersAndForgetsThem) {
  FakeRun run("", "");
  EXPECT_EQ(run.a->calls, "start log log finish ");
  EXPECT_EQ(run.b->calls, "start log log finish ");
  EXPECT_EQ(run.warnings, Names{});
  EXPECT_TRUE(run.list.empty());
  run.list.Log({{"a", 1}}, 3);
  EXPECT_EQ(run.a->calls, "start log log finish ");
}

TEST(TrackerList, LeavesOutATrackerThatCannotStart) {
  const FakeRun run("start", "");
  EXPECT_EQ(run.a->calls, "start ");
  EXPECT_EQ(run.b->calls, "start log log finish ");
  EXPECT_EQ(run.warnings,
            Names{"warning: plain can't start: no network; training goes on without it"});
}

TEST(TrackerList, SaysOnceThatNumbersAreMissing) {
  const FakeRun run("", "log");
  EXPECT_EQ(run.b->calls, "start log log finish ");
  EXPECT_EQ(run.warnings,
            Names{"warning: own can't take numbers: gone; training goes on and numbers "
                  "are missing there"});
}

TEST(TrackerList, SaysThatATrackerCannotFinish) {
  EXPECT_EQ(FakeRun("finish", "").warnings.size(), 1u);
}

TEST(TrackerList, RefusesNothingAtAll) { EXPECT_THROW(TrackerList({nullptr}, nullptr), Error); }

TEST(TrackerNames, ExpandsAllAndNone) {
  const Names all = {"tensorboard", "jsonl"};
  EXPECT_EQ(TrackerNames({"all"}, "report_to"), all);
  EXPECT_EQ(TrackerNames({"jsonl", "all", "jsonl"}, "report_to"), (Names{"jsonl", "tensorboard"}));
  EXPECT_EQ(TrackerNames({"none"}, "report_to"), Names{});
  EXPECT_EQ(TrackerNames({}, "report_to"), Names{});
}

std::string ErrorOf(const Names& names) {
  try {
    TrackerNames(names, "report_to");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(TrackerNames, RefusesOthers) {
  EXPECT_EQ(ErrorOf({"wandb"}),
            "report_to must be tensorboard, jsonl, all or none but is \"wandb\"\n"
            "hint: write files for tensorboard, which other services can import");
  EXPECT_EQ(ErrorOf({"tensorbord"}),
            "report_to must be tensorboard, jsonl, all or none but is \"tensorbord\"\n"
            "hint: did you mean tensorboard?");
  EXPECT_EQ(ErrorOf({"jsonl", "none"}),
            "report_to has none beside other names\nhint: leave none or the others out");
}

// One line although both trackers fail, because the reason is the same.
TEST(MakeTrackers, AFolderThatCannotBeMadeIsOneWarning) {
  const std::string file = testing::TempDir() + "/file" + std::to_string(getpid());
  std::ofstream(file) << "x";
  Names warnings;
  TrackerList list(MakeTrackers(TrackerNames({"all"}, "report_to"), file + "/logs"),
                   [&](const std::string& line) { warnings.push_back(line); });
  list.Start(Json::object());
  EXPECT_EQ(warnings, Names{"warning: tensorboard and jsonl can't start: " + file +
                            "/logs: Not a directory; training goes on without it"});
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(ReadFile(file), "x");
}

// A limit on the file's size makes write fail within a record, as a full disk does.
TEST(AppendFile, AddsAllOrNothing) {
  const std::string path = testing::TempDir() + "/append" + std::to_string(getpid());
  signal(SIGXFSZ, SIG_IGN);
  AppendFile file(path);
  file.Append("0123456789");
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit limit = old;
  limit.rlim_cur = 15;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THROW(file.Append("abcdefghij"), Error);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(ReadFile(path), "0123456789");
  file.Append("abc");
  EXPECT_EQ(ReadFile(path), "0123456789abc");
  fs::remove(path);
}

}  // namespace
}  // namespace lathe
