#include "lathe/core/checkpoint/libraries.h"

#include <absl/status/status.h>
#include <dlfcn.h>

#include <string>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

// A library that stays open until the process ends.
class Library {
 public:
  Library(const char* file, const char* package)
      : file_(file), package_(package), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw Unusable(dlerror());
  }
  template <typename Function>
  void Find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(Address(name));
  }
  void* Address(const char* name) const {
    void* const address = dlsym(handle_, name);
    if (address == nullptr) throw Unusable("it has no " + std::string(name));
    return address;
  }

 private:
  Error Unusable(const std::string& why) const {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "this needs " + std::string(file_) + ": " + why,
                 "install Debian's package " + std::string(package_));
  }
  const char* file_;
  const char* package_;
  void* handle_;
};

// Finds what reads files that Lathe didn't write.
void FindForForeignFiles(const Library& library, Hdf5Library& h) {
  library.Find("H5Aget_type", h.Aget_type);
  library.Find("H5Dget_create_plist", h.Dget_create_plist);
  library.Find("H5Dget_offset", h.Dget_offset);
  library.Find("H5FDregister", h.FDregister);
  library.Find("H5Iget_type", h.Iget_type);
  library.Find("H5Lget_info", h.Lget_info);
  library.Find("H5Lget_val", h.Lget_val);
  library.Find("H5Oclose", h.Oclose);
  library.Find("H5Oopen", h.Oopen);
  library.Find("H5PLset_loading_state", h.PLset_loading_state);
  library.Find("H5Pget_chunk", h.Pget_chunk);
  library.Find("H5Pget_external_count", h.Pget_external_count);
  library.Find("H5Pget_filter2", h.Pget_filter2);
  library.Find("H5Pget_layout", h.Pget_layout);
  library.Find("H5Pget_nfilters", h.Pget_nfilters);
  library.Find("H5Pset_driver", h.Pset_driver);
  library.Find("H5Sselect_hyperslab", h.Sselect_hyperslab);
  library.Find("H5Tget_ebias", h.Tget_ebias);
  library.Find("H5Tget_order", h.Tget_order);
  library.Find("H5Tget_precision", h.Tget_precision);
  library.Find("H5Tget_sign", h.Tget_sign);
  library.Find("H5Tis_variable_str", h.Tis_variable_str);
}

// Finds the constants, which exist once the library is open.
void FindConstants(const Library& library, Hdf5Library& h) {
  const auto id = [&](const char* name) { return *static_cast<hid_t*>(library.Address(name)); };
  h.native_float = id("H5T_NATIVE_FLOAT_g");
  h.native_int64 = id("H5T_NATIVE_INT64_g");
  h.native_uint8 = id("H5T_NATIVE_UINT8_g");
  h.native_uint16 = id("H5T_NATIVE_UINT16_g");
  h.native_uint32 = id("H5T_NATIVE_UINT32_g");
  h.dataset_creation = id("H5P_CLS_DATASET_CREATE_ID_g");
  h.link_creation = id("H5P_CLS_LINK_CREATE_ID_g");
  h.file_access = id("H5P_CLS_FILE_ACCESS_ID_g");
}

Hdf5Library OpenHdf5() {
  const Library library("libhdf5_serial.so.103", "libhdf5-103-1");
  Hdf5Library h;
  library.Find("H5dont_atexit", h.dont_atexit);
  library.Find("H5open", h.open);
  library.Find("H5Eset_auto2", h.Eset_auto2);
  library.Find("H5Ewalk2", h.Ewalk2);
  library.Find("H5Eclear2", h.Eclear2);
  library.Find("H5Fcreate", h.Fcreate);
  library.Find("H5Fopen", h.Fopen);
  library.Find("H5Fflush", h.Fflush);
  library.Find("H5Fclose", h.Fclose);
  library.Find("H5Gopen2", h.Gopen2);
  library.Find("H5Gclose", h.Gclose);
  library.Find("H5Lexists", h.Lexists);
  library.Find("H5Ovisit_by_name2", h.Ovisit_by_name2);
  library.Find("H5Pcreate", h.Pcreate);
  library.Find("H5Pclose", h.Pclose);
  library.Find("H5Pset_obj_track_times", h.Pset_obj_track_times);
  library.Find("H5Pset_chunk", h.Pset_chunk);
  library.Find("H5Pset_fletcher32", h.Pset_fletcher32);
  library.Find("H5Pset_create_intermediate_group", h.Pset_create_intermediate_group);
  library.Find("H5Pset_file_locking", h.Pset_file_locking);
  library.Find("H5Screate_simple", h.Screate_simple);
  library.Find("H5Sget_simple_extent_ndims", h.Sget_simple_extent_ndims);
  library.Find("H5Sget_simple_extent_dims", h.Sget_simple_extent_dims);
  library.Find("H5Sget_simple_extent_npoints", h.Sget_simple_extent_npoints);
  library.Find("H5Sclose", h.Sclose);
  library.Find("H5Dcreate2", h.Dcreate2);
  library.Find("H5Dopen2", h.Dopen2);
  library.Find("H5Dwrite", h.Dwrite);
  library.Find("H5Dread", h.Dread);
  library.Find("H5Dget_space", h.Dget_space);
  library.Find("H5Dget_type", h.Dget_type);
  library.Find("H5Dset_extent", h.Dset_extent);
  library.Find("H5Dwrite_chunk", h.Dwrite_chunk);
  library.Find("H5Dget_chunk_info_by_coord", h.Dget_chunk_info_by_coord);
  library.Find("H5Dclose", h.Dclose);
  library.Find("H5Acreate2", h.Acreate2);
  library.Find("H5Aopen", h.Aopen);
  library.Find("H5Aexists", h.Aexists);
  library.Find("H5Aget_space", h.Aget_space);
  library.Find("H5Awrite", h.Awrite);
  library.Find("H5Aread", h.Aread);
  library.Find("H5Aclose", h.Aclose);
  library.Find("H5Tget_class", h.Tget_class);
  library.Find("H5Tget_size", h.Tget_size);
  library.Find("H5Tclose", h.Tclose);
  FindForForeignFiles(library, h);
  // A file that couldn't be written stays open inside of the library, which would crash when it
  // tidies up at the end of the process.
  h.dont_atexit();
  if (h.open() < 0) throw Error(absl::StatusCode::kInternal, "HDF5 can't be initialized");
  FindConstants(library, h);
  return h;
}

CryptoLibrary OpenCrypto() {
  const Library library("libcrypto.so.3", "libssl3");
  CryptoLibrary c;
  library.Find("EVP_MD_CTX_new", c.EVP_MD_CTX_new);
  library.Find("EVP_MD_CTX_free", c.EVP_MD_CTX_free);
  library.Find("EVP_sha1", c.EVP_sha1);
  library.Find("EVP_sha256", c.EVP_sha256);
  library.Find("EVP_DigestInit_ex", c.EVP_DigestInit_ex);
  library.Find("EVP_DigestUpdate", c.EVP_DigestUpdate);
  library.Find("EVP_DigestFinal_ex", c.EVP_DigestFinal_ex);
  return c;
}

}  // namespace

const Hdf5Library& Hdf5() {
  static const Hdf5Library library = OpenHdf5();
  return library;
}

const CryptoLibrary& Crypto() {
  static const CryptoLibrary library = OpenCrypto();
  return library;
}

}  // namespace lathe
