// Calls of HDF5 on one file, whose failures become errors that name the file.
//
//   const Hdf5Session session("rows.h5", /*writes=*/true);
//   Hdf5Handle file = session.CreateFile("rows.h5");
//   const Hdf5Handle options = session.Own(Hdf5().Pcreate(Hdf5().dataset_creation), Hdf5().Pclose);
//   session.Checked(Hdf5().Pset_fletcher32(options.get()));
//   session.CloseFile(file);
#pragma once

#include <string>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/libraries.h"

namespace lathe {

// Closes an object of HDF5 on every way out.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }
  // Closes now. Returns false if that fails: what was written may be lost.
  bool Release() { return close_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_;
  Close close_;
};

class Hdf5Session {
 public:
  // `path` is the file's name in errors. `writes` tells a failed write from a damaged file.
  Hdf5Session(std::string path, bool writes);

  // Returns `result` unless it is negative.
  template <typename Result>
  Result Checked(Result result) const {
    if (result < 0) Fail();
    return result;
  }
  Hdf5Handle Own(hid_t id, Hdf5Handle::Close close) const { return {Checked(id), close}; }

  // Creates the file at `path`, or empties it.
  Hdf5Handle CreateFile(const std::string& path) const;
  // Closes a file that was written.
  void CloseFile(Hdf5Handle& file) const;

  // Throws what HDF5 says about its last failure: a FileError if the system refused something.
  [[noreturn]] void Fail() const;
  // Returns the DataLoss of a file of a state.
  Error Broken(const std::string& what) const;

 private:
  std::string path_;
  bool writes_;
};

}  // namespace lathe
