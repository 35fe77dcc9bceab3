// Prints the output of several processes as whole lines, each with its rank before it: "[1] text".
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {

using FileDescriptor = Socket;  // pipes are closed like sockets

// Never waits: the caller polls, so that a reader that has stopped can't keep the caller from
// signals.
class TaggedOutput {
 public:
  // Returns a pipe's end that is to take the place of a process's `stream` (STDOUT_FILENO or
  // STDERR_FILENO). This object reads the other end, and closes it once nobody reads this process's
  // own `stream`.
  FileDescriptor Add(int rank, int stream);
  // Adds a line of the caller's own, with its end, to standard error, after the lines that wait.
  void Say(const std::string& line);

  // AppendTo appends what to poll for; Handle takes the same entries back after the poll.
  void AppendTo(std::vector<pollfd>& polled) const;
  void Handle(std::span<const pollfd> polled);
  // Reads what the pipes still hold, for when the processes have ended.
  void ReadRest();
  // Returns true while lines wait to be written.
  bool waiting() const { return !queue_.empty(); }
  // Closes what only this process needs. For use in a process that it forked; safe in a signal
  // handler.
  void CloseInChild() const;

 private:
  struct Source {
    FileDescriptor pipe;
    int rank, stream;
    std::string line;  // the last line, as far as it has come
  };
  struct Line {
    int stream;
    std::string text;
  };

  // Returns false at the end of the source, which is of no more use then.
  bool Read(Source& source);
  void Finish(Source& source);
  void WriteSome();
  bool WantsMore() const { return queue_.size() < kMostLines; }

  static constexpr size_t kMostLines = 1000;  // waiting lines, above which no more are read
  std::deque<Source> sources_;
  std::deque<Line> queue_;  // one for both streams: they may lead to the same place
  size_t written_ = 0;      // bytes of the first line
};

}  // namespace lathe
