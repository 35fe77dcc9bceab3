#include "lathe/core/checkpoint/hdf5_session.h"

#include <absl/status/status.h>

#include <cstdlib>
#include <cstring>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

constexpr unsigned int kTruncate = 2;  // H5F_ACC_TRUNC, whose macro calls a function of the library

// What the stack of HDF5's errors tells of the system's error.
struct SystemError {
  int number = 0;  // 0: HDF5 knows of none
  std::string text;
};

herr_t FindSystemError(unsigned, const H5E_error2_t* error, void* found) {
  auto& result = *static_cast<SystemError*>(found);
  const char* const text = error->desc == nullptr ? "" : error->desc;
  if (result.text.empty()) result.text = text;
  constexpr char kNumber[] = "errno = ";
  if (const char* at = std::strstr(text, kNumber); at != nullptr && result.number == 0)
    result.number = std::atoi(at + sizeof kNumber - 1);
  return 0;
}

}  // namespace

Hdf5Session::Hdf5Session(std::string path, bool writes) : path_(std::move(path)), writes_(writes) {
  Hdf5().Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // prints nothing, in this thread
}

Hdf5Handle Hdf5Session::CreateFile(const std::string& path) const {
  const Hdf5Handle access = Own(Hdf5().Pcreate(Hdf5().file_access), Hdf5().Pclose);
  // Some network file systems have no locks, and nobody else opens a file that isn't ready.
  Checked(Hdf5().Pset_file_locking(access.get(), false, true));
  return Own(Hdf5().Fcreate(path.c_str(), kTruncate, H5P_DEFAULT, access.get()), Hdf5().Fclose);
}

void Hdf5Session::CloseFile(Hdf5Handle& file) const {
  Checked(Hdf5().Fflush(file.get(), H5F_SCOPE_GLOBAL));
  if (!file.Release()) Fail();
}

void Hdf5Session::Fail() const {
  SystemError error;
  Hdf5().Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, FindSystemError, &error);
  Hdf5().Eclear2(H5E_DEFAULT);
  if (error.number != 0) throw FileError(path_, error.number);
  if (writes_) throw FileError(absl::StatusCode::kInternal, path_, "HDF5: " + error.text);
  throw Broken(error.text.empty() ? "HDF5 can't read it" : "HDF5: " + error.text);
}

Error Hdf5Session::Broken(const std::string& what) const {
  return FileError(absl::StatusCode::kDataLoss, path_, "is damaged or no file of a state: " + what);
}

}  // namespace lathe
