// Figures about the evaluation of a classifier, for report.html.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lathe/train/report/report_page.h"

namespace lathe {

// Returns the figures for which the report of an evaluation has numbers: scores of each class,
// calibration, and curves of precision and recall. `report` is what ReportJson
// (data/metrics/evaluation_report.h) returns; what it lacks is left out. If there are more than 30
// classes, the figure of scores has those with most samples. If more than 8 classes have a curve,
// the figure has those with fewest samples, and its title says so.
std::vector<Figure> EvaluationFigures(const nlohmann::json& report);

}  // namespace lathe
