#include "lathe/train/report/report_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "lathe/train/report/confusion.h"
#include "lathe/train/report/evaluation_figures.h"
#include "lathe/train/report/headings.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr size_t kMostRows = 100;          // of a table of numbers
constexpr int64_t kMostBars = 40;          // of a histogram
constexpr int kSecondsToReload = 20;       // while the training runs
constexpr int64_t kMostCharacters = 1000;  // of a text in the table of errors

// Returns the entries of the log that have the key, over their steps.
Series Logged(const nlohmann::json& log, const std::string& key, const std::string& name) {
  Series series{.name = name, .x = {}, .y = {}};
  for (const nlohmann::json& entry : log) {
    if (!entry.is_object() || !entry.contains("step")) continue;
    const auto value = entry.find(key);
    if (value == entry.end() || !value->is_number()) continue;
    series.x.push_back(entry.at("step").get<double>());
    series.y.push_back(value->get<double>());
  }
  return series;
}

// Returns the log's curve up to the first point of `own`, such as that of a training that was
// resumed, and then `own`.
Series Joined(Series logged, const Series& own) {
  if (own.x.empty()) return logged;
  size_t kept = 0;
  while (kept < logged.x.size() && logged.x[kept] < own.x.front()) ++kept;
  logged.x.resize(kept);
  logged.y.resize(kept);
  logged.x.insert(logged.x.end(), own.x.begin(), own.x.end());
  logged.y.insert(logged.y.end(), own.y.begin(), own.y.end());
  return logged;
}

Figure CurveFigure(const std::string& name, const std::string& title, std::vector<Series> series,
                   const std::string& unit = "") {
  std::erase_if(series, [](const Series& one) { return one.x.empty(); });
  Figure figure{.name = name, .title = title, .svg = {}, .x_name = "step", .series = {}};
  if (!series.empty())
    figure.svg = LineChart(series, {.title = title, .x_label = "step", .y_label = unit});
  figure.series = std::move(series);
  return figure;
}

// Returns the metrics of evaluations, without times and counts. Those that lie in [-1, 1] come
// first; others, such as mse, have another scale.
std::pair<std::vector<Series>, std::vector<Series>> Metrics(const nlohmann::json& log) {
  std::map<std::string, Series> all;
  for (const nlohmann::json& entry : log) {
    if (!entry.is_object() || !entry.contains("eval_loss")) continue;
    for (const auto& [key, value] : entry.items()) {
      if (!key.starts_with("eval_") || key == "eval_loss" || key.ends_with("_runtime") ||
          key.ends_with("_samples") || key.ends_with("_per_second"))
        continue;
      all.try_emplace(key, Logged(log, key, key.substr(std::string("eval_").size())));
    }
  }
  std::pair<std::vector<Series>, std::vector<Series>> result;
  for (auto& [key, series] : all) {
    const bool is_share =
        std::all_of(series.y.begin(), series.y.end(), [](double y) { return y >= -1 && y <= 1; });
    (is_share ? result.first : result.second).push_back(std::move(series));
  }
  return result;
}

std::vector<Figure> ResourceFigures(const std::vector<ResourceSample>& samples) {
  Series speed{.name = "tokens a second", .x = {}, .y = {}}, memory{.name = "MB", .x = {}, .y = {}};
  for (size_t i = 0; i < samples.size(); ++i) {
    memory.x.push_back(static_cast<double>(samples[i].step));
    memory.y.push_back(static_cast<double>(samples[i].resident_bytes) / 1e6);
    if (i == 0 || samples[i].seconds <= samples[i - 1].seconds) continue;
    speed.x.push_back(static_cast<double>(samples[i].step));
    speed.y.push_back(static_cast<double>(samples[i].tokens - samples[i - 1].tokens) /
                      (samples[i].seconds - samples[i - 1].seconds));
  }
  Figure throughput = CurveFigure("throughput", "Speed of training", {speed}, "tokens a second");
  throughput.note = "The time of evaluations and saves does not count.";
  return {throughput, CurveFigure("memory", "Memory of the main process", {memory}, "MB")};
}

Figure LengthFigure(const std::vector<int64_t>& lengths) {
  Figure figure{.name = "lengths",
                .title = "Lengths of the training samples",
                .svg = {},
                .x_name = "tokens",
                .series = {{.name = "samples", .x = {}, .y = {}}}};
  Series& series = figure.series[0];
  const auto size = static_cast<int64_t>(lengths.size());
  const int64_t width = (size + kMostBars - 1) / kMostBars;
  std::vector<std::string> names;
  for (int64_t begin = 0; begin < size; begin += width) {
    const int64_t end = std::min(begin + width, size);
    double count = 0;
    for (int64_t n = begin; n < end; ++n)
      count += static_cast<double>(lengths[static_cast<size_t>(n)]);
    series.x.push_back(static_cast<double>(begin));
    series.y.push_back(count);
    names.push_back(std::to_string(begin));
  }
  if (names.empty()) return figure;
  figure.svg = BarChart(names, figure.series,
                        {.title = figure.title,
                         .x_label = width == 1 ? "tokens"
                                               : "tokens, from this number on, " +
                                                     std::to_string(width) + " to a bar",
                         .y_label = "samples"});
  return figure;
}

// --- the page ---

// A cell is empty if a series has no point in this row, which is not the same as undefined.
std::string NumberCell(const std::optional<double>& value) {
  if (!value) return "<td></td>";
  return "<td>" + (std::isfinite(*value) ? FormatNumber("%.6g", *value) : "undefined") + "</td>";
}

// Returns the tag that opens a box with a bar to scroll it, which a keyboard can reach.
std::string ScrollBox(const std::string& label) {
  return "<div class=\"scroll\" role=\"region\" aria-label=\"" + EscapeHtml(label) +
         "\" tabindex=\"0\">";
}

// Returns a table with a row for each x, and a column for each series.
std::string NumbersTable(const Figure& figure) {
  const std::vector<Series>& columns = figure.table.empty() ? figure.series : figure.table;
  std::map<double, std::vector<std::optional<double>>> rows;
  bool thinned = false;
  for (size_t s = 0; s < columns.size(); ++s) {
    const Series shown = Thinned(columns[s], kMostRows);
    thinned = thinned || shown.x.size() < columns[s].x.size();
    for (size_t i = 0; i < shown.x.size(); ++i) {
      auto& row = rows.try_emplace(shown.x[i], columns.size()).first->second;
      row[s] = shown.y[i];
    }
  }
  std::string html = "<details><summary>The numbers" +
                     std::string(thinned ? ", as means of neighbours" : "") + "</summary>" +
                     ScrollBox(figure.title + ": the numbers") +
                     "<table><thead><tr>"
                     "<th scope=\"col\" class=\"name\">" +
                     EscapeHtml(figure.x_name) + "</th>";
  for (const Series& one : columns) html += Heading(HeadingOf::kColumn, one.name);
  html += "</tr></thead><tbody>";
  for (const auto& [x, values] : rows) {
    const auto name = static_cast<size_t>(x);
    html += "<tr><th scope=\"row\">" +
            (name < figure.row_names.size() ? EscapeHtml(figure.row_names[name])
                                            : FormatNumber("%.6g", x)) +
            "</th>";
    for (const std::optional<double>& value : values) html += NumberCell(value);
    html += "</tr>";
  }
  return html + "</tbody></table></div></details>";
}

constexpr std::string_view kStyle =
    R"(:root{color-scheme:light dark;--bg:#fff;--fg:#1c2530;--soft:#f2f4f7;--edge:#c9ced6;--link:#0057a3;--good:#4ba3e3;--bad:#e8853c}
@media (prefers-color-scheme:dark){:root{--bg:#14191f;--fg:#e6eaf0;--soft:#1e252d;--edge:#3a4450;--link:#7cc0ff;--good:#2a6fae;--bad:#a8541c}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}
header,nav,main{max-width:72rem;margin:auto;padding:0 1rem}
h1{font-size:1.6rem;margin:1rem 0 .25rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin:2rem 0 .5rem}
a{color:var(--link)}.skip{position:absolute;left:-999rem}.skip:focus{left:1rem}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;list-style:none}
.figures{columns:2 30rem;column-gap:1rem}
figure{margin:0 0 1rem;break-inside:avoid;padding:.75rem;border:1px solid var(--edge);border-radius:.5rem;min-width:0}
figcaption{font-weight:600;margin-bottom:.25rem}figure p{margin:0 0 .25rem}
.plot{overflow-x:auto}.plot svg{display:block;width:100%;min-width:18rem;max-width:44rem;height:auto}
.scroll{overflow:auto;max-height:20rem}
table{border-collapse:collapse}th,td{padding:.2rem .6rem;border-bottom:1px solid var(--edge);text-align:right}
th[scope=row]{text-align:left;font-weight:400}.facts td{text-align:left;overflow-wrap:anywhere}
thead th{position:sticky;top:0;background:var(--soft);z-index:1;vertical-align:bottom;word-break:keep-all}
pre{background:var(--soft);padding:.75rem;border-radius:.5rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
.matrix td{--c:var(--bad);background:color-mix(in srgb,var(--c) calc(var(--share)*60%),transparent)}.matrix .right{--c:var(--good)}
.matrix th:first-child{position:sticky;left:0;background:var(--bg)}.matrix thead th:first-child{background:var(--soft);z-index:2}
.text td,.text th,th.name{text-align:left;vertical-align:top}.text td.number,.text th.number{text-align:right}
.errors td:last-child{min-width:24rem;overflow-wrap:anywhere}
.errors td::before{display:none;content:attr(data-name) ": "}
@media (max-width:40rem){.errors,.errors tbody{display:block}.errors thead{position:absolute;left:-999rem}
.errors tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--edge)}
.errors td{display:inline;border:0;padding:0 .75rem 0 0;overflow-wrap:anywhere}.errors td::before{display:inline;opacity:.8}
.errors td:last-child{display:block;min-width:0;padding-top:.25rem}.errors td:last-child::before{display:none}
.facts,.facts :is(tbody,tr,th,td){display:block}.facts th{border:0;padding-bottom:0;opacity:.8}
.plot svg{min-width:32rem}}
#age{margin:0;font-weight:600}summary{cursor:pointer;padding:.25rem 0}:focus-visible{outline:3px solid var(--link);outline-offset:2px}
@media print{nav,.skip{display:none}}
)";

std::string Head(const ReportContents& contents) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n";
  if (contents.running) {  // with scripts, kRunningScript does so
    html += "<noscript><meta http-equiv=\"refresh\" content=\"" + std::to_string(kSecondsToReload) +
            "\"></noscript>\n";
  }
  return html + "<title>" + EscapeHtml(contents.title) + "</title>\n<link rel=\"icon\" href=\"" +
         "data:,\">\n<style>\n" + std::string(kStyle) + std::string(ChartStyle()) +
         "</style>\n</head>\n";
}

std::string Facts(const ReportContents& contents) {
  // On a narrow screen each value stands below its name. The roles keep it a table all the same.
  std::string html =
      "<section id=\"summary\"><h2>Summary</h2>\n"
      "<table class=\"facts\" role=\"table\"><tbody role=\"rowgroup\">\n";
  for (const auto& [name, value] : contents.facts) {
    html += "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">" + EscapeHtml(name) +
            "</th><td role=\"cell\">" + EscapeHtml(value) + "</td></tr>\n";
  }
  html += "</tbody></table>\n";
  if (!contents.command.empty()) {
    html += "<h2 id=\"command\">Repeat it</h2>\n<pre><code>" + EscapeHtml(contents.command) +
            "</code></pre>\n";
  }
  return html + "</section>\n";
}

std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    cells.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return cells;
}

// Returns a text of UTF-8 with at most kMostCharacters, and "…" in place of the rest.
std::string Shortened(const std::string& text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (begins && ++count > kMostCharacters) return text.substr(0, i) + "\u2026";
  }
  return text;
}

// Returns a table of the lines of a TSV, whose first line has the names and whose last column has
// the text. Long texts are shortened, since some hundred documents would fill the page. On a narrow
// screen each line becomes a block: the names and values, then the text. The roles keep it a table
// for screen readers all the same. Without lines it is a sentence.
std::string ErrorsTable(const std::string& tsv) {
  std::istringstream lines(tsv);
  std::string line;
  std::getline(lines, line);
  if (lines.peek() == EOF) return "<p>No prediction of the validation data is wrong.</p>";
  const std::vector<std::string> names = Cells(line);
  std::string html = "<table class=\"text errors\" role=\"table\"><thead><tr role=\"row\">";
  for (const std::string& name : names)
    html += "<th scope=\"col\" role=\"columnheader\">" + EscapeHtml(name) + "</th>";
  html += "</tr></thead><tbody role=\"rowgroup\">";
  while (std::getline(lines, line)) {
    html += "<tr role=\"row\">";
    const std::vector<std::string> cells = Cells(line);
    for (size_t i = 0; i < cells.size(); ++i) {
      html += "<td role=\"cell\" data-name=\"" + EscapeHtml(i < names.size() ? names[i] : "") +
              "\">" + EscapeHtml(Shortened(cells[i])) + "</td> ";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table>";
}

// Returns a section with a wide table, or nothing if there is no table.
std::string TableSection(const std::string& id, const TitledTable& table) {
  if (table.html.empty()) return "";
  return "<section><h2 id=\"" + id + "\">" + table.title + "</h2>\n" + ScrollBox(table.title) +
         table.html + "</div></section>\n";
}

// Loads the page again from time to time. It waits while numbers are open or something has the
// focus, which a reader would lose. Says that the training has perhaps ended, if the page was old
// already when it was loaded. Such a page stays in the browser when its file does not change any
// more.
constexpr std::string_view kRunningScript = R"(<script>
(() => {
  const written = document.getElementById("written"), note = document.getElementById("age");
  const loaded = Date.now(), pause = 1000 * Number(written.dataset.reload);
  const inUse = () => document.querySelector("details[open]") !== null ||
    ![null, document.body, document.documentElement].includes(document.activeElement);
  const say = (text) => { if (note.textContent !== text) note.textContent = text; };
  const age = (loaded - Date.parse(written.dateTime)) / 1000;
  const isOld = age > Number(written.dataset.limit);
  if (isOld) {
    const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"]].find(([n]) => age >= n);
    const count = Math.floor(age / size);
    say(`Last written ${count} ${unit}${count === 1 ? "" : "s"} ago; the training has perhaps ended.`);
  }
  setInterval(() => {
    if (Date.now() - loaded < pause) return;
    if (!inUse()) return location.reload();
    if (isOld) return;
    say("This page waits: it loads itself again once no numbers are open and nothing has the focus.");
  }, 1000);
})();
</script>
)";

// Returns when the page was written.
std::string Written(const ReportContents& contents) {
  if (contents.written.empty()) return "";
  if (!contents.running) return "<p>Written at " + EscapeHtml(contents.written) + ".</p>";
  std::string time = contents.written;  // as HTML has it: 2026-01-02T03:04:05Z
  if (const size_t space = time.find(' '); space != std::string::npos) time[space] = 'T';
  if (const size_t zone = time.find(" UTC"); zone != std::string::npos) time.replace(zone, 4, "Z");
  const auto limit = static_cast<int64_t>(std::ceil(3 * contents.seconds_between_writings + 60));
  return "<p>Written at <time id=\"written\" datetime=\"" + EscapeHtml(time) + "\" data-limit=\"" +
         std::to_string(limit) + "\" data-reload=\"" + std::to_string(kSecondsToReload) + "\">" +
         EscapeHtml(contents.written) +
         "</time>. This page loads itself again.</p>\n<p id=\"age\" role=\"status\"></p>\n" +
         std::string(kRunningScript);
}

std::string Contents(const std::vector<Figure>& figures, const TitledTable& confusion,
                     const TitledTable& errors) {
  std::string html = "<nav aria-label=\"Contents\"><ul><li><a href=\"#summary\">Summary</a></li>";
  for (const Figure& figure : figures)
    html += "<li><a href=\"#" + figure.name + "\">" + EscapeHtml(figure.title) + "</a></li>";
  if (!confusion.html.empty())
    html += "<li><a href=\"#confusion\">" + confusion.title + "</a></li>";
  if (!errors.html.empty()) html += "<li><a href=\"#errors\">" + errors.title + "</a></li>";
  return html + "</ul></nav>\n";
}

}  // namespace

std::vector<Figure> MakeFigures(const ReportContents& contents) {
  const nlohmann::json& log = contents.log_history;
  auto [shares, others] = Metrics(log);
  std::vector<Figure> figures = {
      CurveFigure("loss", "Loss",
                  {Joined(Logged(log, "loss", "training"), contents.losses),
                   Logged(log, "eval_loss", "validation")}),
      CurveFigure("metrics", "Metrics of the validation data", std::move(shares)),
      CurveFigure("other_metrics", "Other metrics of the validation data", std::move(others)),
      CurveFigure("learning_rate", "Learning rate",
                  {Joined(Logged(log, "learning_rate", "rate"), contents.learning_rates)}),
      CurveFigure("grad_norm", "Norm of the gradient",
                  {Joined(Logged(log, "grad_norm", "norm"), contents.grad_norms)})};
  for (Figure& figure : ResourceFigures(contents.resources)) figures.push_back(std::move(figure));
  figures.push_back(LengthFigure(contents.lengths));
  for (Figure& figure : EvaluationFigures(contents.evaluation))
    figures.push_back(std::move(figure));
  std::erase_if(figures, [](const Figure& figure) { return figure.svg.empty(); });
  return figures;
}

std::string ReportPage(const ReportContents& contents, const std::vector<Figure>& figures) {
  const TitledTable confusion = ConfusionTable(contents.evaluation);
  TitledTable errors;
  if (!contents.errors.empty()) errors = {"Most confident errors", ErrorsTable(contents.errors)};
  std::string html =
      Head(contents) +
      "<body>\n<a class=\"skip\" href=\"#figures\">To the figures</a>\n<header><h1>" +
      EscapeHtml(contents.title) + "</h1>\n<p role=\"status\">" + EscapeHtml(contents.status) +
      "</p>" + Written(contents) + "</header>\n" + Contents(figures, confusion, errors) +
      "<main>\n" + Facts(contents) +
      "<section><h2 id=\"figures\">Figures</h2>\n<div class=\"figures\">\n";
  for (const Figure& figure : figures) {
    html += "<figure id=\"" + figure.name + "\"><figcaption>" + EscapeHtml(figure.title) +
            "</figcaption>" +
            (figure.note.empty() ? "" : "<p>" + EscapeHtml(figure.note) + "</p>") +
            "<div class=\"plot\">" + figure.svg + "</div>" + NumbersTable(figure) + "</figure>\n";
  }
  return html + "</div></section>\n" + TableSection("confusion", confusion) +
         TableSection("errors", errors) + "</main>\n</body>\n</html>\n";
}

}  // namespace lathe
