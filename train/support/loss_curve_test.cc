#include "lathe/train/support/loss_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

namespace lathe {
namespace {

using Lines = std::vector<std::string>;

LossCurve CurveOf(const std::vector<double>& losses) {
  LossCurve curve;
  for (const double loss : losses) curve.Add(loss);
  return curve;
}

// Counts characters, each of which takes one column.
int Columns(const std::string& line) {
  int columns = 0;
  for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return columns;
}

TEST(LossCurveTest, DrawsFromTheTopLeftToTheBottomRight) {
  // Ten columns of eight rows, and eight losses: the line has no gaps.
  const LossCurve curve = CurveOf({8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_EQ(curve.Lines(13, false), (Lines{"8 |*",          //
                                           "  | *",         //
                                           "  |  **",       //
                                           "  |    *",      //
                                           "  |     *",     //
                                           "  |      **",   //
                                           "  |        *",  //
                                           "1 |         *"}));
}

TEST(LossCurveTest, DrawsBraille) {
  // 20 dots across and 32 down, from the top to the bottom in the middle.
  const LossCurve curve = CurveOf({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(curve.Lines(13, true), (Lines{"1 │⠉⠉⠉⠉⠉⡆",  //
                                          "  │     ⡇",  //
                                          "  │     ⡇",  //
                                          "  │     ⡇",  //
                                          "  │     ⡇",  //
                                          "  │     ⡇",  //
                                          "  │     ⡇",  //
                                          "0 │     ⣇⣀⣀⣀⣀"}));
}

TEST(LossCurveTest, FitsIntoItsWidth) {
  LossCurve curve;
  for (int i = 0; i < 1000; ++i) curve.Add(1e-7 * (1.25 + std::sin(i * 0.01)));
  for (const bool unicode : {false, true}) {
    for (int width = 0; width < 200; ++width) {
      const Lines lines = curve.Lines(width, unicode);
      EXPECT_EQ(lines.size(), width < 20 ? 0u : 8u) << width;  // labels of eight characters
      for (const std::string& line : lines) EXPECT_LE(Columns(line), std::min(width, 82));
    }
    EXPECT_TRUE(curve.Lines(40, unicode)[0].starts_with("2.25e-07 "))
        << curve.Lines(40, unicode)[0];
  }
}

TEST(LossCurveTest, AnyNumberOfStepsHasOneShape) {
  // The same parabola, of few and of many steps.
  const auto parabola = [](int steps) {
    LossCurve curve;
    for (int i = 0; i < steps; ++i) {
      const double x = (i + 0.5) / steps;
      curve.Add(1 + (1 - x) * (1 - x));
    }
    return curve.Lines(43, false);
  };
  const Lines few = parabola(400);
  for (const int steps : {511, 512, 513, 1024, 1025, 100'000}) {
    const Lines lines = parabola(steps);
    int same = 0, all = 0;
    for (size_t line = 0; line < few.size(); ++line) {
      for (size_t i = few[line].find('|'); i < few[line].size(); ++i) {
        ++all;
        same += i < lines[line].size() && lines[line][i] == few[line][i];
      }
    }
    EXPECT_GE(same, all * 9 / 10) << steps;
  }
}

TEST(LossCurveTest, FewOrEqualOrBadLosses) {
  EXPECT_TRUE(LossCurve().Lines(80, true).empty());
  EXPECT_TRUE(
      CurveOf({std::nan(""), std::numeric_limits<double>::infinity()}).Lines(80, true).empty());
  const Lines one = CurveOf({0.5}).Lines(80, false);
  EXPECT_EQ(one[0], "0.5 |");
  EXPECT_EQ(one[4], "    |*");
  EXPECT_EQ(one[7], "0.5 |");
  const Lines equal = CurveOf({0, std::nan(""), 0}).Lines(14, false);
  EXPECT_EQ(equal[4], "  |***********");
}

}  // namespace
}  // namespace lathe
