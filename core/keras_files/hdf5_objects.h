// Opens objects of an HDF5 file that another program wrote, in a confined child (confined_hdf5.h).
#pragma once

#include <hdf5/serial/hdf5.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {

// Owns an identifier of HDF5's library.
class Hdf5Id {
 public:
  using Close = herr_t (*)(hid_t);
  // Throws DataLoss if the library gave no identifier.
  Hdf5Id(hid_t id, Close close) : id_(id), close_(close) {
    if (id < 0) throw DataLoss("HDF5 can't read it");
  }
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Id(const Hdf5Id&) = delete;
  Hdf5Id& operator=(const Hdf5Id&) = delete;
  ~Hdf5Id() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }

 private:
  hid_t id_;
  Close close_;
};

// Returns the library's result. Throws DataLoss with the text `what` if it is negative.
template <typename Result>
Result Checked(Result result, const std::string& what) {
  if (result < 0) throw DataLoss(what);
  return result;
}

// Returns the error for a sound file with something that this reader doesn't have. The hint says
// how to write the file.
Error UnsupportedHdf5(const std::string& what);

// Opens the file with these bytes, which begin with HDF5's signature.
Hdf5Id OpenHdf5InMemory(std::string_view bytes);

// Returns the path of the same object without soft links, or nullopt if there is no such object.
// Throws UnsupportedHdf5 if the path leads into another file, and DataLoss for damaged links.
std::optional<std::string> ResolveHdf5Path(hid_t at, const std::string& path);

// Opens the group or dataset to which the path leads from `at`. Throws what ResolveHdf5Path throws,
// and DataLoss if there is none.
Hdf5Id OpenHdf5Object(hid_t at, const std::string& path);

}  // namespace lathe
