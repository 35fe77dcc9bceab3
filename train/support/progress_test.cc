#include "lathe/train/support/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lathe {
namespace {

// What a terminal shows after the bytes that it got: rows of characters.
class Screen {
 public:
  explicit Screen(int columns) : columns_(columns) {}

  void Show(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size();) {
      if (bytes.compare(i, 2, "\x1b[") == 0) {
        size_t end = i + 2;
        while (end < bytes.size() && std::isdigit(static_cast<unsigned char>(bytes[end]))) ++end;
        Command(bytes.at(end), std::atoi(bytes.c_str() + i + 2));
        i = end + 1;
      } else if (bytes[i] == '\r') {
        column_ = 0;
        ++i;
      } else if (bytes[i] == '\n') {
        ++row_;
        ++i;
      } else {
        size_t end = i + 1;
        while (end < bytes.size() && (static_cast<unsigned char>(bytes[end]) & 0xC0) == 0x80) ++end;
        Cell() = bytes.substr(i, end - i);
        ++column_;
        EXPECT_LE(column_, columns_) << "the line is longer than the terminal is wide";
        i = end;
      }
    }
  }

  // Returns the rows without empty ones at the end.
  std::vector<std::string> Rows() const {
    std::vector<std::string> rows;
    for (const auto& cells : rows_) {
      std::string text;
      for (const std::string& cell : cells) text += cell;
      rows.push_back(text.substr(0, text.find_last_not_of(' ') + 1));
    }
    while (!rows.empty() && rows.back().empty()) rows.pop_back();
    return rows;
  }
  size_t row() const { return row_; }

 private:
  std::string& Cell() {
    if (rows_.size() <= row_) rows_.resize(row_ + 1);
    auto& cells = rows_[row_];
    if (cells.size() <= static_cast<size_t>(column_)) cells.resize(column_ + 1, " ");
    return cells[static_cast<size_t>(column_)];
  }
  void Command(char name, int number) {
    if (name == 'A') {
      row_ -= static_cast<size_t>(std::max(number, 1));
    } else if (name == 'K' || name == 'J') {
      if (row_ < rows_.size())
        rows_[row_].resize(std::min(rows_[row_].size(), static_cast<size_t>(column_)));
      if (name == 'J') rows_.resize(std::min(rows_.size(), row_ + 1));
    } else {
      ADD_FAILURE() << "unknown command " << name;
    }
  }

  int columns_;
  std::vector<std::vector<std::string>> rows_;
  size_t row_ = 0;
  int column_ = 0;
};

// Lets standard error be a terminal of this size.
class ProgressTest : public testing::Test {
 protected:
  void Open(uint16_t columns, uint16_t lines) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = lines;
    int terminal = -1;
    ASSERT_EQ(openpty(&reader_, &terminal, nullptr, nullptr, &size), 0);
    fcntl(reader_, F_SETFL, O_NONBLOCK);
    saved_ = dup(STDERR_FILENO);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
  }
  void SetUp() override { setenv("LC_ALL", "C.UTF-8", 1); }
  ~ProgressTest() override {
    if (saved_ < 0) return;
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    close(reader_);
  }

  // Returns what came since the last call.
  std::string Written() const {
    std::string bytes;
    char buffer[4096];
    for (ssize_t got; (got = read(reader_, buffer, sizeof buffer)) > 0;)
      bytes.append(buffer, static_cast<size_t>(got));
    return bytes;
  }
  // Does so many steps whose losses fall from 1 to 0.5, and one more that is shown.
  static void Train(Progress& progress, int steps) {
    for (int i = 0; i < steps; ++i) progress.Update(1, 1 - 0.5 * i / std::max(1, steps - 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    progress.Update(1, 0.5);
  }

  int reader_ = -1, saved_ = -1;
};

const Progress::Options kTrain = {.total = 200, .loss_curve = true};

TEST(FoldedLine, BreaksWhereAPartNoLongerFits) {
  const std::vector<std::string> parts = {"eval at step 3", "loss 0.5", "f1 0.25"};
  EXPECT_EQ(FoldedLine(parts, "  ", 4, 0), "eval at step 3  loss 0.5  f1 0.25");
  EXPECT_EQ(FoldedLine(parts, "  ", 4, 33), "eval at step 3  loss 0.5  f1 0.25");
  EXPECT_EQ(FoldedLine(parts, "  ", 4, 32), "eval at step 3  loss 0.5\n    f1 0.25");
  EXPECT_EQ(FoldedLine(parts, "  ", 4, 23), "eval at step 3\n    loss 0.5  f1 0.25");
  EXPECT_EQ(FoldedLine(parts, "  ", 4, 1), "eval at step 3\n    loss 0.5\n    f1 0.25");
  EXPECT_EQ(FoldedLine({"\u00fc\u00fc", "\u00fc"}, " ", 0, 4), "\u00fc\u00fc \u00fc");
  EXPECT_EQ(FoldedLine({}, " ", 4, 10), "");
}

TEST_F(ProgressTest, CurveStandsBelowTheBarAndGoesWithIt) {
  Open(60, 24);
  Screen screen(60);
  {
    Progress progress(kTrain);
    Train(progress, 99);
    screen.Show(Written());
    std::vector<std::string> rows = screen.Rows();
    ASSERT_EQ(rows.size(), 9u);
    EXPECT_TRUE(rows[0].starts_with("  50% ")) << rows[0];
    EXPECT_NE(rows[0].find(" 100/200 "), std::string::npos) << rows[0];
    EXPECT_TRUE(rows[1].starts_with("  1 │⠉")) << rows[1];
    EXPECT_TRUE(rows[8].starts_with("0.5 │")) << rows[8];
    EXPECT_TRUE(rows[8].ends_with("⣀")) << rows[8];
    EXPECT_EQ(screen.row(), 0u) << "the cursor is not beside the bar";

    Train(progress, 20);  // the next picture replaces the first one
    screen.Show(Written());
    rows = screen.Rows();
    ASSERT_EQ(rows.size(), 9u);
    EXPECT_NE(rows[0].find(" 121/200 "), std::string::npos) << rows[0];

    progress.Clear();
    screen.Show(Written());
    EXPECT_TRUE(screen.Rows().empty());
    Train(progress, 5);
    screen.Show(Written());
    EXPECT_EQ(screen.Rows().size(), 9u);
  }
  screen.Show(Written());
  EXPECT_TRUE(screen.Rows().empty());
}

TEST_F(ProgressTest, CurveIsAsciiUnlessTheLocaleIsUtf8) {
  Open(60, 24);
  for (const char* locale : {"C", "de_DE.ISO-8859-1", "en_US.utf8", "C.UTF-8"}) {
    setenv("LC_ALL", locale, 1);
    Progress progress(kTrain);
    Train(progress, 99);
    const std::string written = Written();
    const bool ascii = std::all_of(written.begin(), written.end(), [](char c) { return c >= 0; });
    EXPECT_EQ(ascii, std::string(locale).find("8859") != std::string::npos || locale[1] == 0)
        << locale;
    EXPECT_NE(written.find(ascii ? "0.5 |" : "0.5 │"), std::string::npos) << written;
  }
  unsetenv("LC_ALL");
}

TEST_F(ProgressTest, CurveNeedsRoom) {
  for (const auto& [columns, lines] : {std::pair(12, 24), std::pair(60, 9)}) {
    Open(static_cast<uint16_t>(columns), static_cast<uint16_t>(lines));
    Screen screen(columns);
    Progress progress(kTrain);
    Train(progress, 99);
    screen.Show(Written());
    EXPECT_EQ(screen.Rows().size(), 1u) << columns << " x " << lines;
  }
}

TEST_F(ProgressTest, NothingIsDrawnUnlessItIsAskedFor) {
  Open(60, 24);
  {
    Progress progress({.total = 200});
    Train(progress, 99);
    const std::string written = Written();
    EXPECT_NE(written.find(" 100/200 "), std::string::npos) << written;
    EXPECT_EQ(written.find('\n'), std::string::npos) << written;
  }
  EXPECT_EQ(Written(), "\r\x1b[K");
  for (const bool prints : {true, false}) {
    Progress progress({.total = 200, .enabled = !prints, .prints = prints, .loss_curve = true});
    Train(progress, 99);
    EXPECT_EQ(Written(), "");
  }
  EXPECT_EQ(Written(), "");
}

TEST_F(ProgressTest, NothingIsDrawnElsewhere) {
  testing::internal::CaptureStderr();  // a file
  testing::internal::CaptureStdout();
  {
    Progress progress(kTrain);
    Train(progress, 99);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace lathe
