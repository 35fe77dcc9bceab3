#include "lathe/core/keras_files/memory_driver.h"

#include <cstring>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/libraries.h"

namespace lathe {
namespace {

std::string_view contents;  // HDF5 gives a driver no better place for what it needs

struct File {
  H5FD_t base = {};  // HDF5's part
  haddr_t end = 0;   // of the addresses that HDF5 uses
};

H5FD_t* Open(const char*, unsigned, hid_t, haddr_t) { return &(new File)->base; }
herr_t Close(H5FD_t* file) {
  delete reinterpret_cast<File*>(file);
  return 0;
}
herr_t Query(const H5FD_t*, unsigned long* flags) {
  *flags = 0;
  return 0;
}
haddr_t GetEnd(const H5FD_t* file, H5FD_mem_t) { return reinterpret_cast<const File*>(file)->end; }
herr_t SetEnd(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  reinterpret_cast<File*>(file)->end = end;
  return 0;
}
haddr_t GetSize(const H5FD_t*, H5FD_mem_t) { return contents.size(); }
herr_t Read(H5FD_t*, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* out) {
  if (address > contents.size() || size > contents.size() - address) return -1;
  std::memcpy(out, contents.data() + address, size);
  return 0;
}
herr_t Write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

H5FD_class_t MakeDriver() {
  H5FD_class_t driver = {};
  driver.name = "lathe_memory";
  driver.maxaddr = HADDR_MAX;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.open = Open;
  driver.close = Close;
  driver.query = Query;
  driver.get_eoa = GetEnd;
  driver.set_eoa = SetEnd;
  driver.get_eof = GetSize;
  driver.read = Read;
  driver.write = Write;
  const H5FD_mem_t types[] = H5FD_FLMAP_SINGLE;
  std::memcpy(driver.fl_map, types, sizeof types);
  return driver;
}

}  // namespace

void UseMemoryDriver(hid_t access, std::string_view bytes) {
  static const H5FD_class_t driver = MakeDriver();
  contents = bytes;
  const hid_t id = Hdf5().FDregister(&driver);
  if (id < 0 || Hdf5().Pset_driver(access, id, nullptr) < 0) {
    throw DataLoss("HDF5 can't read from memory");
  }
}

}  // namespace lathe
