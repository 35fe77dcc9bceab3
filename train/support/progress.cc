#include "lathe/train/support/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

namespace lathe {
namespace {

constexpr auto kBarInterval = std::chrono::milliseconds(100);
constexpr auto kPlainLineInterval = std::chrono::seconds(10);

int TerminalWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

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

  const int width = TerminalWidth() - 1;
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
  const auto now = Clock::now();
  if (!options_.enabled ||
      now - last_shown_ < (terminal_ ? Clock::duration(kBarInterval) : kPlainLineInterval))
    return;
  last_shown_ = now;
  if (terminal_) {
    std::cerr << '\r' << Line(true) << "\x1b[K" << std::flush;
    drawn_ = true;
  } else {
    std::cout << Line(false) << std::endl;
  }
}

void Progress::Print(const std::string& line) {
  if (!options_.prints) return;
  Clear();
  std::cout << line << std::endl;
}

void Progress::Clear() {
  if (drawn_) std::cerr << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace lathe
