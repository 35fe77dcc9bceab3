#include "lathe/train/support/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr size_t kMostParts = 512;
constexpr int kMostCells = 72, kLeastCells = 10;  // characters of the picture in a line

// A grid of dots, several of which share a character.
class Dots {
 public:
  Dots(int cells, bool unicode)
      : unicode_(unicode),
        cells_(static_cast<size_t>(cells)),
        patterns_(cells_ * LossCurve::kNumLines) {}

  int width() const { return static_cast<int>(cells_) * (unicode_ ? 2 : 1); }
  int height() const { return LossCurve::kNumLines * (unicode_ ? 4 : 1); }

  // Sets the dot in column x from the left and row y from the top.
  void Set(int x, int y) {
    // The bits of Unicode's Braille patterns from U+2800 on, by row and column.
    constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const int across = unicode_ ? 2 : 1, down = unicode_ ? 4 : 1;
    patterns_[static_cast<size_t>(y / down) * cells_ + static_cast<size_t>(x / across)] |=
        kBits[y % down][x % across];
  }

  // Returns the characters of a line, without spaces at its end.
  std::string Line(int line) const {
    std::string text;
    size_t end = 0;  // of the last character that is no space
    for (size_t cell = 0; cell < cells_; ++cell) {
      const uint8_t pattern = patterns_[static_cast<size_t>(line) * cells_ + cell];
      if (pattern == 0) {
        text += ' ';
        continue;
      }
      if (unicode_) {
        text += '\xE2';
        text += static_cast<char>(0xA0 | (pattern >> 6));
        text += static_cast<char>(0x80 | (pattern & 0x3F));
      } else {
        text += '*';
      }
      end = text.size();
    }
    return text.substr(0, end);
  }

 private:
  bool unicode_;
  size_t cells_;
  std::vector<uint8_t> patterns_;
};

// Returns the values at `columns` places from the first to the last one. They are means of
// neighbours if there are more values, else points on the lines between them. A single value stays
// alone.
std::vector<double> Resampled(std::span<const double> values, size_t columns) {
  const size_t n = values.size();
  if (n == 1) return {values[0]};
  std::vector<double> result;
  for (size_t c = 0; c < columns; ++c) {
    if (n <= columns) {
      const double place =
          static_cast<double>(c * (n - 1)) / static_cast<double>(std::max<size_t>(columns - 1, 1));
      const size_t left = std::min(static_cast<size_t>(place), n - 2);
      result.push_back(
          std::lerp(values[left], values[left + 1], place - static_cast<double>(left)));
      continue;
    }
    const size_t begin = c * n / columns, end = (c + 1) * n / columns;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    result.push_back(sum / static_cast<double>(end - begin));
  }
  return result;
}

// Draws the values as a line without gaps.
void Draw(const std::vector<double>& values, double low, double high, Dots& dots) {
  int before = -1;
  for (size_t x = 0; x < values.size(); ++x) {
    const double share = (high - values[x]) / (high - low);
    const int y = std::clamp(static_cast<int>(std::lround(share * (dots.height() - 1))), 0,
                             dots.height() - 1);
    // From the row beside that of the dot before to the own one.
    const int from = before < 0 || before == y ? y : before < y ? before + 1 : before - 1;
    for (int row = std::min(from, y); row <= std::max(from, y); ++row)
      dots.Set(static_cast<int>(x), row);
    before = y;
  }
}

}  // namespace

void LossCurve::Add(double loss) {
  if (!std::isfinite(loss)) return;
  if (parts_.empty() || parts_.back().count == steps_in_part_) {
    if (parts_.size() == kMostParts) {
      for (size_t i = 0; i < kMostParts / 2; ++i) {
        const Part &a = parts_[2 * i], &b = parts_[2 * i + 1];
        parts_[i] = {.sum = a.sum + b.sum, .count = a.count + b.count};
      }
      parts_.resize(kMostParts / 2);
      steps_in_part_ *= 2;
    }
    parts_.emplace_back();
  }
  parts_.back().sum += loss;
  ++parts_.back().count;
}

std::vector<std::string> LossCurve::Lines(int width, bool unicode) const {
  if (parts_.empty()) return {};
  std::vector<double> means;
  for (const Part& part : parts_) means.push_back(part.sum / static_cast<double>(part.count));
  const auto [lowest, highest] = std::minmax_element(means.begin(), means.end());
  const double low = *lowest, high = *highest;
  const std::string top = FormatNumber("%.4g", high), bottom = FormatNumber("%.4g", low);
  const std::string axis = unicode ? " │" : " |";
  const auto label_width = static_cast<int>(std::max(top.size(), bottom.size()));
  const int cells = std::min(width - label_width - 2, kMostCells);
  if (cells < kLeastCells) return {};

  Dots dots(cells, unicode);
  const std::vector<double> values = Resampled(means, static_cast<size_t>(dots.width()));
  // Equal losses lie in the middle.
  const double margin = high > low ? 0 : std::max(std::abs(high), 1e-9);
  Draw(values, low - margin, high + margin, dots);
  std::vector<std::string> lines;
  for (int line = 0; line < kNumLines; ++line) {
    const std::string label = line == 0 ? top : line + 1 == kNumLines ? bottom : "";
    lines.push_back(std::string(static_cast<size_t>(label_width) - label.size(), ' ') + label +
                    axis + dots.Line(line));
  }
  return lines;
}

}  // namespace lathe
