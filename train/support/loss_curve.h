// LossCurve: a small picture of a training's losses, as lines of text for a terminal.
//
//   LossCurve curve;
//   curve.Add(0.69);                                  // once for each step
//   for (const std::string& line : curve.Lines(79, /*unicode=*/true)) std::cerr << line << '\n';
//
// The picture spans all steps so far, from the left to the right, and all losses, from the bottom
// to the top. It remembers 512 numbers at most, each the mean of as many steps as the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

class LossCurve {
 public:
  static constexpr int kNumLines = 8;

  // Adds the loss of the next step. A loss that is not finite is left out.
  void Add(double loss);

  // Returns kNumLines lines of at most `width` columns each. Beside the first and the last one
  // stand the highest and the lowest loss. With `unicode` a character is a pattern of Braille in
  // UTF-8, with 2 x 4 dots; else all is ASCII. Returns no lines if there is no loss yet or too
  // little room.
  std::vector<std::string> Lines(int width, bool unicode) const;

 private:
  // Neighbouring steps, whose mean is one number of the curve.
  struct Part {
    double sum = 0;
    int64_t count = 0;
  };

  std::vector<Part> parts_;
  int64_t steps_in_part_ = 1;  // the last part may have fewer
};

}  // namespace lathe
