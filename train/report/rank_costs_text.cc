#include "lathe/train/report/rank_costs_text.h"

#include <nlohmann/json.hpp>

#include "lathe/train/support/progress.h"

namespace lathe {

std::string RankCostsText(const nlohmann::json& metrics) {
  if (!metrics.contains("time_in_collectives")) return "";
  const auto seconds = [&](const char* name) {
    return FormatNumber("%.3g s", metrics.at(name).get<double>());
  };
  const double runtime = metrics.value("train_runtime", 0.0);
  const double extra = metrics.at("slowest_rank_extra_time").get<double>();
  return seconds("time_in_collectives") + " in collectives, of which computation hid " +
         seconds("time_in_collectives_hidden") + " and waited for " +
         seconds("time_in_collectives_exposed") + "; rank " +
         std::to_string(metrics.at("slowest_rank").get<int>()) + " was the slowest, by " +
         seconds("slowest_rank_extra_time") +
         (runtime > 0 ? FormatNumber(" (%.1f %% of the time)", 100 * extra / runtime) : "");
}

}  // namespace lathe
