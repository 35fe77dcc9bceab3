#include "lathe/train/report/figure_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/report/chart.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// All names that figures have.
constexpr std::string_view kNames[] = {
    "loss",   "metrics", "other_metrics", "learning_rate", "grad_norm",        "throughput",
    "memory", "lengths", "classes",       "calibration",   "precision_recall", "confusion_matrix"};

std::string FileOf(const std::string& folder, std::string_view name) {
  return folder + "/plots/" + std::string(name) + ".svg";
}

// Returns true if StandaloneSvg has made the file. A link, or what can't be read, is a user's.
bool IsOwn(const std::string& path) {
  std::error_code code;
  if (!fs::is_regular_file(fs::symlink_status(path, code))) return false;
  try {
    const std::string text = ReadFile(path);
    return text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" ") &&
           text.find("><style>.chart{") != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

using Figures = std::map<std::string, std::string>;

void RemoveOthers(const std::string& folder, const Figures& kept) {
  std::error_code code;
  for (const std::string_view name : kNames) {
    const std::string path = FileOf(folder, name);
    if (!kept.contains(std::string(name)) && IsOwn(path)) fs::remove(path, code);
  }
}

}  // namespace

void WriteFigureFiles(const std::string& folder, const Figures& figures) {
  fs::create_directories(folder + "/plots");
  for (const auto& [name, svg] : figures) {
    Check(std::ranges::find(kNames, name) != std::end(kNames), "report", "the figure ", name,
          " is not in the list of names");
    WriteFileAtomically(FileOf(folder, name), StandaloneSvg(svg));
  }
  RemoveOthers(folder, figures);
}

void RemoveFigureFiles(const std::string& folder) {
  RemoveOthers(folder, {});
  const std::string plots = folder + "/plots";
  std::error_code code;
  if (fs::is_directory(fs::symlink_status(plots, code)))
    fs::remove(plots, code);  // fails if it isn't empty
}

}  // namespace lathe
