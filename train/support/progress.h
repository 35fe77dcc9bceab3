// Shows progress to people. On a terminal it is a bar with rate, loss and time left, elsewhere a
// plain line every 10 seconds or more.
//
//   Progress progress({.title = "train", .total = 1000});
//   progress.Update(1, loss);
//   progress.Print("eval_accuracy = 0.91");      // a line that doesn't collide with the bar
//
// The bar goes to standard error, lines go to standard output. On a terminal of 10 lines or more a
// curve of the losses may stand below the bar (loss_curve.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lathe/train/support/loss_curve.h"

namespace lathe {

class Progress {
 public:
  struct Options {
    std::string title = "";
    int64_t begin = 0;  // units that were done before, which don't count for the rate
    int64_t total = 0;
    std::string unit = "step";
    bool enabled = true;      // shows the bar or the plain lines
    bool prints = true;       // false: this process prints nothing, as other ranks print for it
    bool loss_curve = false;  // shows the curve on a terminal, if the bar is enabled
  };

  explicit Progress(Options options);
  ~Progress();  // removes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Counts `done` more units. `loss` is shown from now on, and is the next point of the curve.
  void Update(int64_t done, std::optional<double> loss = std::nullopt);
  // Prints a line, unless this process prints nothing.
  void Print(const std::string& line);
  // Removes bar and curve until the next update, so that another bar can be shown.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string Line(bool with_bar) const;
  std::vector<std::string> CurveLines() const;
  void Draw();

  Options options_;
  bool terminal_;
  bool drawn_ = false;
  int64_t done_ = 0;
  std::optional<double> loss_;
  std::optional<LossCurve> curve_;  // if there is one to show
  Clock::time_point start_ = Clock::now(), last_shown_ = start_;
};

// Returns how many columns a line of standard output may have: those of the terminal that shows it.
// Returns 0 if standard output or standard error is no terminal, as other programs then read the
// lines.
int ColumnsOfOutput();
// Joins the parts of a line by `separator`. A part that would end behind column `columns` begins a
// new line, behind `indent` spaces. With `columns` 0 there is one line.
std::string FoldedLine(const std::vector<std::string>& parts, const std::string& separator,
                       size_t indent, int columns);

// Returns minutes and seconds, "1:05", or hours as well, "2:03:40".
std::string FormatDuration(double seconds);
// Returns the number with commas: "109,483,778".
std::string FormatCount(int64_t n);
// Formats a number as printf does, for lines of text.
std::string FormatNumber(const char* format, double value);

}  // namespace lathe
