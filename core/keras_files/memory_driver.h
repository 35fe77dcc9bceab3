// Lets HDF5 read a file that is in memory, so that it needs no system calls.
#pragma once

#include <hdf5/serial/hdf5.h>

#include <string_view>

namespace lathe {

// Sets the driver of an access list. Files that are opened with it have these bytes, whatever their
// name, and can't be written. One process reads one file so.
void UseMemoryDriver(hid_t access, std::string_view bytes);

}  // namespace lathe
