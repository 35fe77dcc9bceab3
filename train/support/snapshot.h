// A copy of the parameters' values to go back to, in an unnamed file: it costs page cache, which
// the system can take back, instead of memory, and vanishes with the process.
//
//   Snapshot good(out_dir);
//   good.Take(values);
//   if (good.taken()) good.Restore(values);
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lathe {

class Snapshot {
 public:
  explicit Snapshot(std::string dir) : dir_(std::move(dir)) {}
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Replaces the copy. A full disk is no reason to stop: taken() is false then, and the result says
  // why (an errno, otherwise 0).
  int Take(std::span<const float> values);
  bool taken() const { return taken_; }
  // `values` must have the size that was taken. Throws if the file can't be read.
  void Restore(std::span<float> values) const;

 private:
  std::string dir_;
  int fd_ = -1;
  bool taken_ = false;
};

// The descriptor of a file in `dir` that has no name there; -1, with errno, if it can't be had.
// `use_tmpfile`: by O_TMPFILE where the file system has it, which network file systems often don't.
int OpenUnnamedFile(const std::string& dir, bool use_tmpfile = true);

}  // namespace lathe
