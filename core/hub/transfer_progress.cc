#include "lathe/core/hub/transfer_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "lathe/core/text/terminal_text.h"

namespace lathe {
namespace {

constexpr int kBarWidth = 24;

std::string FormatSeconds(double seconds) {
  const auto all = static_cast<long>(seconds);
  char text[32];
  if (all >= 3600) {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", all / 3600, all / 60 % 60, all % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld:%02ld", all / 60, all % 60);
  }
  return text;
}

}  // namespace

std::string FormatSize(int64_t bytes) {
  double value = static_cast<double>(bytes);
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, units[unit]);
  return text;
}

TransferProgress::TransferProgress(std::string title, int64_t done, int64_t total, bool enabled)
    : title_(TerminalText(title)),
      first_(done),
      done_(done),
      total_(total),
      enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) == 1) {}

TransferProgress::~TransferProgress() {
  if (drawn_) std::cerr << "\r\033[K" << std::flush;
}

std::string TransferProgress::Line(bool with_bar) const {
  const double seconds =
      std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-3);
  const double rate = static_cast<double>(std::max<int64_t>(done_ - first_, 0)) / seconds;
  const double share =
      total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 1;
  std::string line = title_ + ": ";
  if (with_bar) {
    const int full = static_cast<int>(share * kBarWidth);
    line += "[" + std::string(full, '=') + std::string(kBarWidth - full, ' ') + "] ";
  }
  line += FormatSize(done_);
  if (done_ < total_) line += " of " + FormatSize(total_);
  line += ", " + FormatSize(static_cast<int64_t>(rate)) + "/s";
  if (done_ < total_ && rate > 0) {
    line += ", " + FormatSeconds(static_cast<double>(total_ - done_) / rate) + " left";
  }
  return line;
}

void TransferProgress::Update(int64_t done) {
  done_ = done;
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (now - last_shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10))) {
    return;
  }
  last_shown_ = now;
  if (terminal_) {
    std::cerr << "\r\033[K" << Line(true) << std::flush;
    drawn_ = true;
  } else {
    std::cerr << Line(false) << std::endl;
  }
}

void TransferProgress::Finish() {
  if (!enabled_) return;
  if (drawn_) std::cerr << "\r\033[K";
  drawn_ = false;
  std::cerr << Line(false) << std::endl;
}

}  // namespace lathe
