// The page report.html: one file that tells about a training, in figures, without a network.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/train/report/chart.h"

namespace lathe {

// What a training used up to a step.
struct ResourceSample {
  int64_t step = 0;
  double seconds = 0;  // since the training began in this process, without evaluations and saves
  int64_t tokens = 0;  // of all samples so far
  int64_t resident_bytes = 0;  // memory of this process
};

struct ReportContents {
  std::string title;
  std::string status;        // one sentence
  bool running = false;      // the page then loads itself again
  std::string written = {};  // when the page was written: "2026-01-02 03:04:05 UTC"; may be empty
  // The longest time between two writings so far. The page of a process that was killed can't tell
  // that. So once it is three times as old and a minute more, a script on it says so.
  double seconds_between_writings = 0;
  std::string command;  // what repeats the training; may be empty
  std::vector<std::pair<std::string, std::string>> facts = {};  // rows of a table
  nlohmann::json log_history = nlohmann::json::array();         // TrainerState::log_history
  // The report's own curves of the training, finer than the log's. From their first step on they
  // take the place of the log's. Each may be empty.
  Series losses = {}, learning_rates = {}, grad_norms = {};
  std::vector<ResourceSample> resources = {};
  // lengths[n] is the number of training samples of n tokens.
  std::vector<int64_t> lengths = {};
  // The evaluation after the training: what ReportJson returns, and the most confident errors as a
  // table in TSV with a line of names. Either may be empty.
  nlohmann::json evaluation = nlohmann::json::object();
  std::string errors = {};
};

// One figure of the page, with the numbers that it shows.
struct Figure {
  std::string name;  // of its .svg file, such as "loss"
  std::string title, svg;
  std::string x_name;                       // heads the first column of the numbers
  std::vector<Series> series;               // x names the rows
  std::vector<std::string> row_names = {};  // of row x = 0, 1, ...; empty: x itself
  std::string note = {};                    // stands below the title
  std::vector<Series> table = {};           // the numbers, if they are not those of `series`
};

// Returns the figures for which there are numbers.
std::vector<Figure> MakeFigures(const ReportContents& contents);

// Returns the page. It needs no other file, and has the numbers of each figure as a table. Without
// scripts it lacks nothing but its own age.
std::string ReportPage(const ReportContents& contents, const std::vector<Figure>& figures);

}  // namespace lathe
