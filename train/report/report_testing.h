// What tests of the report share: an evaluation to draw, and a way to count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lathe {

inline size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

inline nlohmann::json SomeEvaluation(size_t num_classes) {
  nlohmann::json report = {{"classes", nlohmann::json::array()},
                           {"calibration_bins",
                            {{{"confidence", nullptr}, {"accuracy", nullptr}},
                             {{"confidence", 0.75}, {"accuracy", 0.5}},
                             {{"confidence", 1.0}, {"accuracy", 1.0}}}}};
  std::vector<std::vector<int64_t>> matrix(num_classes, std::vector<int64_t>(num_classes));
  for (size_t c = 0; c < num_classes; ++c) {
    report["classes"].push_back({{"label", "<" + std::to_string(c) + ">"},
                                 {"precision", 0.5},
                                 {"recall", nullptr},
                                 {"f1", 0.25},
                                 {"support", c}});
    matrix[c][c] = 3;
    matrix[c][0] += static_cast<int64_t>(c);
  }
  report["confusion_matrix"] = matrix;
  return report;
}

// Gives each class a curve, but for those without samples.
inline nlohmann::json WithCurves(nlohmann::json report) {
  for (nlohmann::json& one : report["classes"]) {
    one["precision_recall_curve"] = nlohmann::json{{"precision", {0.25, 0.5, 0.75, 1.0}},
                                                   {"recall", {1.0, 1.0, 0.3, 0.0}},
                                                   {"thresholds", {0.125, 0.5, 0.875}}};
    if (one["support"] == 0) one["precision_recall_curve"] = nullptr;
  }
  return report;
}

}  // namespace lathe
