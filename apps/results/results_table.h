// The tables of results that programs print. They fit into 80 columns.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/metrics/evaluation_report.h"

namespace lathe {

// Prints the title and a line for each metric.
void PrintMetrics(std::ostream& out, const std::string& title, const nlohmann::json& metrics);

// Prints a line for each class, with "undefined" where a value is; then the means and the other
// numbers. Then it prints which classes are confused or, for several labels, the right and wrong
// answers. If there are more than 20 classes, it shows those with most samples and counts the
// others.
void PrintReport(std::ostream& out, const EvaluationReport& report,
                 const std::vector<std::string>& names);

// Returns the text in exactly `width` columns of a terminal: cut with "…", or with spaces behind.
// Wide characters, as in Chinese, take two columns. Control characters become spaces.
std::string FitColumns(std::string_view text, size_t width);

}  // namespace lathe
