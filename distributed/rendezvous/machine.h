// This machine's name, and what it has for the processes of a job: cores, GPUs and open files.
#pragma once

#include <cstdint>
#include <string>

namespace lathe {

// Returns the machine's name; "" if the system doesn't tell.
std::string HostName();

// Returns the number of cores that this process may run on.
int UsableCores();

// Returns the number of NVIDIA GPUs that the driver lists; 0 without a driver.
int InstalledGpus(const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// Returns the number of those GPUs that CUDA_VISIBLE_DEVICES leaves to this process.
int VisibleGpus(const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// Raises the number of files and connections that this process may have open at once
// (RLIMIT_NOFILE) as far as it may go without rights of an administrator. Returns it.
int64_t RaiseOpenFileLimit();

// Raises the limit. Throws FailedPrecondition if that is not enough for a rank of a job: `rank 0 of
// 512 may open 1024 files but needs about 1664`. Rank 0 serves the store, to which every rank has
// two connections. Each rank is also connected to each other one.
void RequireOpenFiles(int rank, int world_size);

}  // namespace lathe
