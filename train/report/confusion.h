// Which classes a classifier confuses, for report.html.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lathe {

// A part of the page with a heading. Both are empty if there is nothing to show.
struct TitledTable {
  std::string title, html;
};

// Returns what the report of an evaluation (ReportJson, data/metrics/evaluation_report.h) has:
// the confusion matrix, darker cells for more samples; with more than 30 classes, a list of the
// classes that are taken for another one most often; or, with several labels at once, how often
// each label is rightly and wrongly given and left out.
TitledTable ConfusionTable(const nlohmann::json& report);

// Returns the confusion matrix as a figure, or "" if the report has none or it has more than 40
// classes.
std::string ConfusionSvg(const nlohmann::json& report);

}  // namespace lathe
