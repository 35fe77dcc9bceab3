#include "lathe/data/metrics/precision_recall_curve.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

struct Point {
  double precision = 1, recall = 0;
};

// Returns the place along the curve of the end and then of each level, as the sum of distances from
// the end at recall 0.
std::vector<double> Places(const std::vector<Point>& points) {
  std::vector<double> places = {0};
  for (size_t i = 1; i < points.size(); ++i) {
    places.push_back(places.back() + std::abs(points[i].precision - points[i - 1].precision) +
                     std::abs(points[i].recall - points[i - 1].recall));
  }
  return places;
}

// Returns the indices of the points to keep, ascending, with the first and the last.
std::vector<size_t> Kept(const std::vector<Point>& points, size_t most_points) {
  std::vector<size_t> kept = {0};
  const std::vector<double> places = Places(points);
  const double part = places.back() / static_cast<double>(most_points - 1);
  const bool all = points.size() <= most_points;
  size_t last_part = 0;
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    const auto part_of_point = static_cast<size_t>(places[i] / part);
    // The first point of each part is kept. The last part has the end.
    const bool first = part_of_point > last_part && part_of_point + 1 < most_points;
    if (!all && !first) continue;
    last_part = part_of_point;
    kept.push_back(i);
  }
  kept.push_back(points.size() - 1);
  return kept;
}

}  // namespace

std::optional<PrecisionRecallCurve> MakePrecisionRecallCurve(std::span<const RankLevel> levels,
                                                             size_t most_points) {
  Check(most_points > 1, "precision_recall_curve", "expected at least 2 points but got ",
        most_points);
  if (levels.empty() || levels.back().positives == 0) return std::nullopt;
  const auto positives = static_cast<double>(levels.back().positives);
  std::vector<Point> points = {{}};  // by falling thresholds
  for (const RankLevel& level : levels) {
    const auto right = static_cast<double>(level.positives);
    points.push_back({.precision = right / static_cast<double>(level.positives + level.negatives),
                      .recall = right / positives});
  }
  PrecisionRecallCurve curve;
  const std::vector<size_t> kept = Kept(points, most_points);
  for (auto i = kept.rbegin(); i != kept.rend(); ++i) {
    curve.precision.push_back(points[*i].precision);
    curve.recall.push_back(points[*i].recall);
    if (*i > 0) curve.thresholds.push_back(levels[*i - 1].score);
  }
  return curve;
}

}  // namespace lathe
