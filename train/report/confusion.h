// Which classes a classifier confuses, for report.html.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lathe {

// A part of the page with a heading. Both are empty if there is nothing to show.
struct TitledTable {
  std::string title, html;
};

// Returns what the report of an evaluation (ReportJson, data/metrics/evaluation_report.h) has. This
// is the confusion matrix, with darker cells for more samples. With more than 30 classes it is a
// list of the classes that are taken for another one most often. With several labels at once it
// says how often each label is rightly and wrongly given and left out.
TitledTable ConfusionTable(const nlohmann::json& report);

// Returns the confusion matrix as a figure, or "" if the report has none or it has more than 40
// classes.
std::string ConfusionSvg(const nlohmann::json& report);

}  // namespace lathe
