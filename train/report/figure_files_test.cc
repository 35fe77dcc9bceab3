#include "lathe/train/report/figure_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/report/report_page.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// A folder for plots/, which users may fill, too.
class FigureFiles : public testing::Test {
 protected:
  FigureFiles() : folder_(testing::TempDir() + "/figures_" + std::to_string(getpid())) {
    fs::create_directories(folder_ + "/plots");
  }
  ~FigureFiles() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/plots/" + name; }
  bool Exists(const std::string& name) const { return fs::exists(Path(name)); }

  const std::string folder_;
  const std::string svg_ = LineChart({{.name = "a", .x = {1}, .y = {2}}}, {.title = "T"});
};

TEST_F(FigureFiles, OlderOnesLeaveAndAUsersStay) {
  WriteFigureFiles(folder_, {{"loss", svg_}, {"metrics", svg_}, {"confusion_matrix", svg_}});
  WriteFileAtomically(Path("my_loss.svg"), ReadFile(Path("loss.svg")));
  WriteFileAtomically(Path("classes.svg"), "<svg>mine</svg>");
  WriteFileAtomically(Path("notes.txt"), "mine");
  fs::create_symlink("my_loss.svg", Path("memory.svg"));
  fs::create_directory(Path("lengths.svg"));
  WriteFigureFiles(folder_, {{"loss", svg_}});
  EXPECT_EQ(ReadFile(Path("loss.svg")), StandaloneSvg(svg_));
  EXPECT_FALSE(Exists("metrics.svg"));
  EXPECT_FALSE(Exists("confusion_matrix.svg"));
  RemoveFigureFiles(folder_);
  EXPECT_FALSE(Exists("loss.svg"));
  for (const char* name : {"my_loss.svg", "classes.svg", "notes.txt", "memory.svg", "lengths.svg"})
    EXPECT_TRUE(Exists(name)) << name;
}

TEST_F(FigureFiles, TheirFolderLeavesIfItIsEmpty) {
  RemoveFigureFiles(folder_ + "/none");
  WriteFigureFiles(folder_, {{"loss", svg_}});
  RemoveFigureFiles(folder_);
  EXPECT_FALSE(fs::exists(folder_ + "/plots"));
  fs::create_directory(folder_ + "/elsewhere");
  fs::create_directory_symlink("elsewhere", folder_ + "/plots");
  RemoveFigureFiles(folder_);
  EXPECT_TRUE(fs::is_symlink(folder_ + "/plots"));
}

// A figure whose name is not in the list would stay for ever.
TEST_F(FigureFiles, AllNamesAreKnown) {
  using Json = nlohmann::json;
  ReportContents contents{.title = "T", .status = "S", .command = ""};
  contents.log_history = {{{"step", 1}, {"loss", 1.0}, {"learning_rate", 0.1}, {"grad_norm", 2.0}},
                          {{"step", 1}, {"eval_loss", 0.5}, {"eval_f1", 0.5}, {"eval_mse", 7.5}}};
  contents.resources = {{.step = 0}, {.step = 1, .seconds = 2, .tokens = 300}};
  contents.lengths = {0, 3};
  const Json curve = {
      {"precision", {0.25, 1.0}}, {"recall", {1.0, 0.5}}, {"thresholds", {0.1, 0.9}}};
  Json one = {{"label", "a"}, {"precision", 0.5}, {"recall", 0.5}, {"f1", 0.5}, {"support", 3}};
  one["precision_recall_curve"] = curve;
  contents.evaluation = {{"classes", {one, one}},
                         {"calibration_bins", {{{"confidence", 0.75}, {"accuracy", 0.5}}}}};
  std::map<std::string, std::string> files = {{"confusion_matrix", svg_}};
  for (const Figure& figure : MakeFigures(contents)) files[figure.name] = figure.svg;
  EXPECT_EQ(files.size(), 12u);
  EXPECT_NO_THROW(WriteFigureFiles(folder_, files));
  EXPECT_THROW(WriteFigureFiles(folder_, {{"other", svg_}}), Error);
}

}  // namespace
}  // namespace lathe
