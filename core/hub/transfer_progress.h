// Shows a download to people, on standard error. On a terminal it is a bar with rate and time left,
// elsewhere a line every 10 seconds and one at the end. If a signal ends the program in the middle,
// AbandonDownload gives the last words.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <string>

namespace lathe {

class TransferProgress {
 public:
  // `done` bytes were there before.
  TransferProgress(std::string title, int64_t done, int64_t total, bool enabled);
  ~TransferProgress();  // removes the bar
  TransferProgress(const TransferProgress&) = delete;
  TransferProgress& operator=(const TransferProgress&) = delete;

  void Update(int64_t done);  // all bytes that are there now
  void Finish();              // prints the last line

 private:
  using Clock = std::chrono::steady_clock;
  std::string Line(bool with_bar) const;

  std::string title_;
  int64_t first_, done_, total_;
  bool enabled_, terminal_;
  Clock::time_point start_ = Clock::now(), last_shown_ = start_;
};

// Prints a line on standard error. A bar that is there goes.
void PrintNote(const std::string& line);

// Says, while it exists, that a model's files are asked for and fetched.
class OngoingDownload {
 public:
  explicit OngoingDownload(const std::string& model);
  ~OngoingDownload();
  OngoingDownload(const OngoingDownload&) = delete;
  OngoingDownload& operator=(const OngoingDownload&) = delete;

 private:
  std::list<std::string>::iterator model_;
};

// Is called before a signal ends the program, on any thread. Ends the line of a bar that is there.
// From then on no TransferProgress prints. Returns the line that says how to go on with the
// download; "" if there is none.
std::string AbandonDownload();

// Returns a size as people read it: "438 MB", "1.34 GB".
std::string FormatSize(int64_t bytes);

}  // namespace lathe
