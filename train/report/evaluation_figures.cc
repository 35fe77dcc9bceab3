#include "lathe/train/report/evaluation_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lathe {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostClasses = 30;  // that a figure shows
constexpr size_t kMostNamesInNote = 10;

// Returns the number under the key, or NaN if it is undefined.
double NumberOr(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : std::nan("");
}

// Returns the places of the classes to show: all of them, or those with most samples, in order.
std::vector<size_t> ShownClasses(const Json& classes) {
  std::vector<size_t> shown(classes.size());
  std::iota(shown.begin(), shown.end(), size_t{0});
  if (shown.size() <= kMostClasses) return shown;
  std::stable_sort(shown.begin(), shown.end(), [&](size_t a, size_t b) {
    return NumberOr(classes[a], "support") > NumberOr(classes[b], "support");
  });
  shown.resize(kMostClasses);
  std::sort(shown.begin(), shown.end());
  return shown;
}

Figure ClassFigure(const Json& classes) {
  const std::vector<size_t> shown = ShownClasses(classes);
  Figure figure{.name = "classes",
                .title = shown.size() < classes.size() ? "Scores of the most frequent classes"
                                                       : "Scores of each class",
                .svg = {},
                .x_name = "class",
                .series = {{.name = "precision", .x = {}, .y = {}},
                           {.name = "recall", .x = {}, .y = {}},
                           {.name = "f1", .x = {}, .y = {}}},
                .row_names = {},
                .note = {}};
  bool undefined = false;
  for (const size_t c : shown) {
    figure.row_names.push_back(classes[c].at("label").get<std::string>());
    for (Series& series : figure.series) {
      series.x.push_back(static_cast<double>(figure.row_names.size() - 1));
      series.y.push_back(NumberOr(classes[c], series.name.c_str()));
      undefined = undefined || !std::isfinite(series.y.back());
    }
  }
  if (undefined) {
    figure.note =
        "A recall is undefined without samples of the class, a precision without predictions of "
        "it. That is not the same as 0.";
  }
  figure.svg = ClassBars(figure.row_names, figure.series, {.title = figure.title, .x_high = 1});
  return figure;
}

Figure CalibrationFigure(const Json& bins) {
  Figure figure{.name = "calibration",
                .title = "Calibration: how often predictions are right, by their confidence",
                .svg = {},
                .x_name = "mean confidence",
                .series = {{.name = "share that is right", .x = {}, .y = {}}}};
  for (const Json& bin : bins) {
    const double confidence = NumberOr(bin, "confidence"), accuracy = NumberOr(bin, "accuracy");
    if (!std::isfinite(confidence) || !std::isfinite(accuracy)) continue;
    figure.series[0].x.push_back(confidence);
    figure.series[0].y.push_back(accuracy);
  }
  if (figure.series[0].x.empty()) return figure;
  figure.svg = LineChart(figure.series, {.title = figure.title,
                                         .x_label = "confidence",
                                         .y_label = "share that is right",
                                         .x_low = 0,
                                         .x_high = 1,
                                         .y_low = 0,
                                         .y_high = 1,
                                         .diagonal = true});
  return figure;
}

// The classes that an evaluation has curves for.
struct CurveClasses {
  std::vector<size_t> drawn;           // places, in order
  size_t defined = 0;                  // at least as many as are drawn
  std::vector<std::string> undefined;  // names of those without samples
};

// If there are too many curves, those of the classes with fewest samples are drawn. Rare classes
// are what a mean over all samples doesn't show.
CurveClasses ClassesWithCurves(const Json& classes) {
  CurveClasses result;
  for (size_t c = 0; c < classes.size(); ++c) {
    const auto curve = classes[c].find("precision_recall_curve");
    if (curve == classes[c].end()) continue;
    if (curve->is_object()) {
      result.drawn.push_back(c);
    } else {
      result.undefined.push_back(classes[c].at("label").get<std::string>());
    }
  }
  result.defined = result.drawn.size();
  if (result.defined <= kNumStyles) return result;
  std::stable_sort(result.drawn.begin(), result.drawn.end(), [&](size_t a, size_t b) {
    return NumberOr(classes[a], "support") < NumberOr(classes[b], "support");
  });
  result.drawn.resize(kNumStyles);
  std::sort(result.drawn.begin(), result.drawn.end());
  return result;
}

// Returns the curve of a class, by rising recall.
Series CurveOf(const Json& one) {
  const Json& curve = one.at("precision_recall_curve");
  Series series{.name = one.at("label").get<std::string>(),
                .x = curve.at("recall").get<std::vector<double>>(),
                .y = curve.at("precision").get<std::vector<double>>()};
  std::reverse(series.x.begin(), series.x.end());
  std::reverse(series.y.begin(), series.y.end());
  return series;
}

// Returns the highest precision at a recall of 0, 0.1, ..., 1 or more.
Series PrecisionTable(const Series& curve) {
  Series table{.name = curve.name, .x = {}, .y = {}};
  for (int tenth = 0; tenth <= 10; ++tenth) {
    double highest = std::nan("");
    for (size_t i = 0; i < curve.x.size(); ++i) {
      if (curve.x[i] >= tenth / 10.0) highest = std::fmax(highest, curve.y[i]);
    }
    table.x.push_back(tenth / 10.0);
    table.y.push_back(highest);
  }
  return table;
}

std::string NoteOnCurves(const std::vector<std::string>& undefined) {
  std::string note =
      "Each step is a threshold of the probability. The table has the highest precision at each "
      "recall.";
  if (undefined.empty()) return note;
  note += " Undefined, since the data have no sample: ";
  for (size_t i = 0; i < undefined.size() && i < kMostNamesInNote; ++i)
    note += (i > 0 ? ", " : "") + undefined[i];
  if (undefined.size() > kMostNamesInNote)
    note += " and " + std::to_string(undefined.size() - kMostNamesInNote) + " more";
  return note + ".";
}

Figure PrecisionRecallFigure(const Json& classes) {
  const CurveClasses curves = ClassesWithCurves(classes);
  const std::string which = curves.defined > curves.drawn.size()
                                ? " of the " + std::to_string(curves.drawn.size()) + " rarest of " +
                                      std::to_string(classes.size()) + " classes"
                                : "";
  Figure figure{.name = "precision_recall",
                .title = "Precision and recall" + which,
                .svg = {},
                .x_name = "recall of at least",
                .series = {},
                .row_names = {},
                .note = NoteOnCurves(curves.undefined)};
  for (const size_t c : curves.drawn) {
    figure.series.push_back(CurveOf(classes[c]));
    figure.table.push_back(PrecisionTable(figure.series.back()));
  }
  if (figure.series.empty()) return figure;
  if (classes.size() == 2 && figure.series.size() == 1)
    figure.title += " of " + figure.series[0].name;
  // The legend names undefined ones, too, as far as it has styles.
  for (const std::string& name : curves.undefined) {
    if (figure.series.size() < kNumStyles)
      figure.series.push_back({.name = name + ": undefined", .x = {}, .y = {}});
  }
  figure.svg = LineChart(figure.series, {.title = figure.title,
                                         .x_label = "recall" + which,
                                         .y_label = "precision",
                                         .x_low = 0,
                                         .x_high = 1,
                                         .y_low = 0,
                                         .y_high = 1,
                                         .steps = true});
  return figure;
}

}  // namespace

std::vector<Figure> EvaluationFigures(const Json& report) {
  std::vector<Figure> figures;
  if (const auto classes = report.find("classes"); classes != report.end() && !classes->empty())
    figures.push_back(ClassFigure(*classes));
  if (const auto bins = report.find("calibration_bins"); bins != report.end()) {
    Figure figure = CalibrationFigure(*bins);
    if (!figure.svg.empty()) figures.push_back(std::move(figure));
  }
  if (const auto classes = report.find("classes"); classes != report.end()) {
    Figure figure = PrecisionRecallFigure(*classes);
    if (!figure.svg.empty()) figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace lathe
