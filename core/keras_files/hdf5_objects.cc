#include "lathe/core/keras_files/hdf5_objects.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "lathe/core/checkpoint/libraries.h"
#include "lathe/core/keras_files/memory_driver.h"

namespace lathe {
namespace {

constexpr size_t kMostParts = 100;  // of a path
constexpr int kMostLinks = 16;      // that lead from one to the next
constexpr size_t kMostTarget = 4096;

// Returns the names between the slashes. HDF5 takes "." for the group itself.
std::deque<std::string> PartsOf(const std::string& path) {
  std::deque<std::string> parts;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

// Returns the path to which a soft link leads.
std::string TargetOf(hid_t at, const std::string& link, size_t size) {
  const std::string wrong = "the link \"" + link + "\" can't be read";
  if (size == 0 || size > kMostTarget) throw DataLoss(wrong);
  std::string target(size, '\0');
  Checked(Hdf5().Lget_val(at, link.c_str(), target.data(), size, H5P_DEFAULT), wrong);
  target.resize(strnlen(target.data(), size));
  return target;
}

}  // namespace

Error UnsupportedHdf5(const std::string& what) {
  return Error(absl::StatusCode::kUnimplemented, what,
               "write the file again, such as in Python with h5py: its arrays in this one file, "
               "little-endian, and not compressed or by gzip");
}

Hdf5Id OpenHdf5InMemory(std::string_view bytes) {
  Hdf5().Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // prints nothing
  Hdf5().PLset_loading_state(0);
  const Hdf5Id access(Hdf5().Pcreate(Hdf5().file_access), Hdf5().Pclose);
  UseMemoryDriver(access.get(), bytes);
  constexpr unsigned kReadOnly = 0;  // H5F_ACC_RDONLY, whose macro calls a function
  // HDF5 asks for the current folder unless the name is that of a file in the root.
  return Hdf5Id(Hdf5().Fopen("/file", kReadOnly, access.get()), Hdf5().Fclose);
}

std::optional<std::string> ResolveHdf5Path(hid_t at, const std::string& path) {
  std::deque<std::string> left = PartsOf(path);
  if (left.empty()) return std::nullopt;
  std::string resolved = path.starts_with('/') ? "/" : "";
  int links = 0;
  while (!left.empty()) {
    if (left.size() > kMostParts) throw DataLoss("a name has too many parts");
    const bool needs_slash = !resolved.empty() && resolved.back() != '/';
    const std::string next = resolved + (needs_slash ? "/" : "") + left.front();
    left.pop_front();
    // The call fails if the part before is a dataset.
    if (Hdf5().Lexists(at, next.c_str(), H5P_DEFAULT) <= 0) return std::nullopt;
    H5L_info_t info;
    Checked(Hdf5().Lget_info(at, next.c_str(), &info, H5P_DEFAULT), "its links are damaged");
    if (info.type == H5L_TYPE_HARD) {
      resolved = next;
      continue;
    }
    if (info.type == H5L_TYPE_EXTERNAL) {
      throw UnsupportedHdf5("\"" + next + "\" leads to another file, which Lathe does not read");
    }
    if (info.type != H5L_TYPE_SOFT) throw DataLoss("\"" + next + "\" is an unknown kind of link");
    if (++links > kMostLinks) throw DataLoss("\"" + path + "\" leads through too many links");
    const std::string target = TargetOf(at, next, info.u.val_size);
    if (target.starts_with('/')) resolved.assign(1, '/');
    const std::deque<std::string> parts = PartsOf(target);
    left.insert(left.begin(), parts.begin(), parts.end());
  }
  return resolved;
}

Hdf5Id OpenHdf5Object(hid_t at, const std::string& path) {
  const std::optional<std::string> resolved = ResolveHdf5Path(at, path);
  if (!resolved) throw DataLoss("it lacks \"" + path + "\", which it lists");
  return Hdf5Id(Hdf5().Oopen(at, resolved->c_str(), H5P_DEFAULT), Hdf5().Oclose);
}

}  // namespace lathe
