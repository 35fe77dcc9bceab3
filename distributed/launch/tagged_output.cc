// The part of the supervisor that prints what the ranks print, line by line.
#include <absl/status/status.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/launch/rank_supervisor.h"

namespace lathe {
namespace {

// A longer line is written in parts.
constexpr size_t kLongestLine = 1 << 20;
// While so many lines wait, no more are read.
constexpr size_t kMostLines = 1000;
// A pipe takes this much without blocking when poll says that it is ready (PIPE_BUF of Linux).
constexpr size_t kMostAtOnce = 4096;

}  // namespace

FileDescriptor TaggedOutput::Add(int rank, int stream) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(absl::ErrnoToStatusCode(errno),
                "[launch] no pipe can be made for the output of rank " + std::to_string(rank) +
                    ": " + std::strerror(errno));
  }
  FileDescriptor in(ends[0]), out(ends[1]);
  fcntl(in.fd(), F_SETFL, O_NONBLOCK);
  sources_.push_back({std::move(in), rank, stream, ""});
  return out;
}

void TaggedOutput::CloseInChild() const {
  for (const Source& source : sources_) close(source.pipe.fd());
}

void TaggedOutput::Say(const std::string& line) { queue_.push_back({STDERR_FILENO, line}); }

void TaggedOutput::AppendTo(std::vector<pollfd>& polled) const {
  for (const Source& source : sources_) {
    polled.push_back({queue_.size() < kMostLines ? source.pipe.fd() : -1, POLLIN, 0});
  }
  if (waiting()) polled.push_back({queue_.front().stream, POLLOUT, 0});
}

void TaggedOutput::Handle(std::span<const pollfd> polled) {
  const bool writable = polled.size() > sources_.size() && polled.back().revents != 0;
  std::deque<Source> open;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (polled[i].revents == 0 || Read(sources_[i])) open.push_back(std::move(sources_[i]));
  }
  sources_ = std::move(open);
  if (writable) WriteSome();
}

bool TaggedOutput::Read(Source& source) {
  char buffer[1 << 16];
  const ssize_t got = read(source.pipe.fd(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {
    if (!source.line.empty()) Finish(source);
    return false;
  }
  for (const char c : std::span(buffer, static_cast<size_t>(got))) {
    if (c != '\n') source.line += c;
    if (c == '\n' || source.line.size() == kLongestLine) Finish(source);
  }
  return true;
}

void TaggedOutput::Finish(Source& source) {
  queue_.push_back({source.stream, "[" + std::to_string(source.rank) + "] " + source.line + '\n'});
  source.line.clear();
}

void TaggedOutput::WriteSome() {
  const Line& first = queue_.front();
  const size_t size = std::min(first.text.size() - written_, kMostAtOnce);
  const ssize_t written = write(first.stream, first.text.data() + written_, size);
  if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (written < 0) {
    // Nobody reads this stream any more. The processes should find that out, as they would without
    // tags.
    const int stream = first.stream;
    std::erase_if(sources_, [&](const Source& s) { return s.stream == stream; });
    std::erase_if(queue_, [&](const Line& line) { return line.stream == stream; });
  } else {
    written_ += static_cast<size_t>(written);
    if (written_ < first.text.size()) return;
    queue_.pop_front();
  }
  written_ = 0;
}

void TaggedOutput::ReadRest() {
  // So many reads empty a full pipe; more find nothing, and don't wait. What a process writes that
  // outlives its rank is lost.
  constexpr int kMostReads = 64;
  for (Source& source : sources_) {
    for (int i = 0; i < kMostReads && Read(source); ++i) continue;
    if (!source.line.empty()) Finish(source);
  }
  sources_.clear();
}

}  // namespace lathe
