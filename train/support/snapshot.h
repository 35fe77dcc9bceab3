// A copy of the parameters' values to go back to, in an unnamed file that vanishes with the
// process. The file takes page cache, which the system can take back, instead of memory.
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

  // Replaces the copy. Returns 0, or an errno if there is no copy now: taken() is then false. It
  // doesn't throw, because a full disk is no reason to stop.
  int Take(std::span<const float> values);
  bool taken() const { return taken_; }
  // `values` must have the size that was taken. Throws if the file can't be read.
  void Restore(std::span<float> values) const;

 private:
  std::string dir_;
  int fd_ = -1;
  bool taken_ = false;
};

// Opens a file in `dir` that has no name there. Returns its descriptor, or -1 and sets errno.
// `use_tmpfile`: try O_TMPFILE first, which network file systems often lack.
int OpenUnnamedFile(const std::string& dir, bool use_tmpfile = true);

}  // namespace lathe
