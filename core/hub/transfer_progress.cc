#include "lathe/core/hub/transfer_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <mutex>

#include "lathe/core/text/terminal_text.h"

namespace lathe {
namespace {

constexpr int kBarWidth = 24;

// What the threads that download share with one that ends the program.
struct Shared {
  std::mutex mutex;               // of the members, and of the terminal's last line
  bool drawn = false;             // a bar stands in that line
  bool abandoned = false;         // nothing is printed any more
  std::list<std::string> models;  // that are being downloaded
};

Shared& TheShared() {
  static Shared shared;
  return shared;
}

// Removes the bar. The caller holds the mutex.
void EraseBar(Shared& shared) {
  if (shared.drawn) std::cerr << "\r\033[K" << std::flush;
  shared.drawn = false;
}

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
  if (!enabled_) return;
  const std::lock_guard<std::mutex> lock(TheShared().mutex);
  EraseBar(TheShared());
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
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (shared.abandoned) return;
  if (terminal_) {
    std::cerr << "\r\033[K" << Line(true) << std::flush;
    shared.drawn = true;
  } else {
    std::cerr << Line(false) << std::endl;
  }
}

void TransferProgress::Finish() {
  if (!enabled_) return;
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (shared.abandoned) return;
  EraseBar(shared);
  std::cerr << Line(false) << std::endl;
}

void PrintNote(const std::string& line) {
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (shared.abandoned) return;
  EraseBar(shared);
  std::cerr << TerminalText(line) << std::endl;
}

OngoingDownload::OngoingDownload(const std::string& model) {
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  model_ = shared.models.insert(shared.models.end(), model);
}

OngoingDownload::~OngoingDownload() {
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.models.erase(model_);
}

std::string AbandonDownload() {
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.abandoned = true;
  if (shared.drawn) std::cerr << std::endl;
  shared.drawn = false;
  if (shared.models.empty()) return "";
  return "the download of " + shared.models.back() +
         " was interrupted; what came is kept in the cache, and the same command goes on with it";
}

}  // namespace lathe
