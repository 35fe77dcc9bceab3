// The output of several processes as whole lines, each with its rank before it: "[1] text".
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

// Never waits: the caller polls, so that a reader who has stopped can't keep it from signals.
class TaggedOutput {
 public:
  // A pipe's end, to take the place of a process's `stream` (STDOUT_FILENO or STDERR_FILENO). The
  // other end is read here, and closed once nobody reads what this process writes to `stream`.
  FileDescriptor Add(int rank, int stream);
  // A line of the caller's own on standard error, after what waits.
  void Say(const std::string& line);

  // Appends what to poll for; Handle then takes the same ones back.
  void AppendTo(std::vector<pollfd>& polled) const;
  void Handle(std::span<const pollfd> polled);
  // Takes what the pipes still hold; for when the processes have ended.
  void ReadRest();
  // True while lines wait to be written.
  bool waiting() const { return !queue_.empty(); }
  // Closes what only this process needs, in one that it forked; safe in a signal handler.
  void CloseInChild() const;

 private:
  struct Source {
    FileDescriptor pipe;
    int rank, stream;
    std::string line;  // what has come of the latest
  };
  struct Line {
    int stream;
    std::string text;
  };

  // False at the end, when the source is of no more use.
  bool Read(Source& source);
  void Finish(Source& source);
  void WriteSome();
  bool WantsMore() const { return queue_.size() < kMostLines; }

  static constexpr size_t kMostLines = 1000;  // that wait before no more are read
  std::deque<Source> sources_;
  std::deque<Line> queue_;  // one for both streams: they may lead to the same place
  size_t written_ = 0;      // of the first line
};

}  // namespace lathe
