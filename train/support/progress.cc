#include "lathe/train/support/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace lathe {
namespace {

constexpr auto kBarInterval = std::chrono::milliseconds(100);
constexpr auto kPlainLineInterval = std::chrono::seconds(10);

struct TerminalSize {
  int columns = 80, lines = 24;
};

TerminalSize SizeOfTerminal() {
  winsize found{};
  TerminalSize size;
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &found) != 0) return size;
  if (found.ws_col > 0) size.columns = found.ws_col;
  if (found.ws_row > 0) size.lines = found.ws_row;
  return size;
}

// Returns true if the terminal shows UTF-8, as the first of these variables that is set says: what
// POSIX calls the value of LC_CTYPE. The program itself keeps the C locale, which writes numbers
// with a point.
bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == 0) continue;
    std::string locale = value;
    std::transform(locale.begin(), locale.end(), locale.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

// Returns how many columns UTF-8 takes if each character takes one.
size_t WidthOf(const std::string& text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<size_t>(std::ranges::count_if(text, begins));
}

}  // namespace

int ColumnsOfOutput() {
  return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) ? SizeOfTerminal().columns : 0;
}

std::string FoldedLine(const std::vector<std::string>& parts, const std::string& separator,
                       size_t indent, int columns) {
  std::string text;
  size_t column = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t width = WidthOf(parts[i]);
    if (i > 0 && columns > 0 &&
        column + WidthOf(separator) + width > static_cast<size_t>(columns)) {
      text += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (i > 0) {
      text += separator;
      column += WidthOf(separator);
    }
    text += parts[i];
    column += width;
  }
  return text;
}

std::string FormatDuration(double seconds) {
  const int64_t s = std::llround(std::clamp(seconds, 0.0, 1e9));
  char buffer[48];
  if (s >= 3600) {
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld:%02lld", static_cast<long long>(s / 3600),
                  static_cast<long long>(s / 60 % 60), static_cast<long long>(s % 60));
  } else {
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld", static_cast<long long>(s / 60),
                  static_cast<long long>(s % 60));
  }
  return buffer;
}

std::string FormatCount(int64_t n) {
  std::string digits = std::to_string(n);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > (n < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return digits;
}

std::string FormatNumber(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

Progress::Progress(Options options)
    : options_(std::move(options)), terminal_(isatty(STDERR_FILENO)), done_(options_.begin) {
  options_.enabled = options_.enabled && options_.prints;
  if (options_.loss_curve && options_.enabled && terminal_) curve_.emplace();
}

Progress::~Progress() { Clear(); }

std::string Progress::Line(bool with_bar) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = elapsed > 0 ? static_cast<double>(done_ - options_.begin) / elapsed : 0;
  const double share =
      options_.total > 0 ? static_cast<double>(done_) / static_cast<double>(options_.total) : 1;
  std::string tail = " " + std::to_string(done_) + "/" + std::to_string(options_.total);
  tail += rate == 0 || rate >= 1 ? "  " + FormatNumber("%.2f ", rate) + options_.unit + "/s"
                                 : "  " + FormatNumber("%.2f s/", 1 / rate) + options_.unit;
  if (loss_) tail += "  loss " + FormatNumber("%.4f", *loss_);
  if (rate > 0)
    tail += "  " + FormatDuration(static_cast<double>(options_.total - done_) / rate) + " left";
  std::string head = options_.title + FormatNumber(" %3.0f%%", 100 * share);
  if (!with_bar) return head + tail;

  const int width = SizeOfTerminal().columns - 1;
  const int room = std::min(40, width - static_cast<int>(head.size() + tail.size()) - 3);
  if (room >= 5) {
    const int filled = std::clamp(static_cast<int>(std::lround(room * share)), 0, room);
    head += " [" + std::string(filled, '#') + std::string(room - filled, '.') + "]";
  }
  return (head + tail).substr(0, static_cast<size_t>(std::max(width, 1)));
}

void Progress::Update(int64_t done, std::optional<double> loss) {
  done_ += done;
  if (loss) loss_ = loss;
  if (loss && curve_) curve_->Add(*loss);
  const auto now = Clock::now();
  if (!options_.enabled ||
      now - last_shown_ < (terminal_ ? Clock::duration(kBarInterval) : kPlainLineInterval))
    return;
  last_shown_ = now;
  if (terminal_) {
    Draw();
  } else {
    std::cout << Line(false) << std::endl;
  }
}

std::vector<std::string> Progress::CurveLines() const {
  if (!curve_) return {};
  const TerminalSize size = SizeOfTerminal();
  if (size.lines < LossCurve::kNumLines + 2) return {};
  return curve_->Lines(size.columns - 1, LocaleIsUtf8());
}

void Progress::Draw() {
  std::string text;
  // The curve comes first, and the cursor goes back up: it rests behind the bar, as without a
  // curve.
  const std::vector<std::string> lines = CurveLines();
  for (const std::string& line : lines) text += "\r\n" + line + "\x1b[K";
  if (!lines.empty()) text += "\x1b[" + std::to_string(lines.size()) + "A";
  text += '\r' + Line(true) + (lines.empty() && curve_ ? "\x1b[J" : "\x1b[K");
  std::cerr << text << std::flush;
  drawn_ = true;
}

void Progress::Print(const std::string& line) {
  if (!options_.prints) return;
  Clear();
  std::cout << line << std::endl;
}

void Progress::Clear() {
  if (drawn_) std::cerr << (curve_ ? "\r\x1b[J" : "\r\x1b[K") << std::flush;
  drawn_ = false;
}

}  // namespace lathe
