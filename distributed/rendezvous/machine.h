// This machine's name, and what it has for the processes of a job: cores and GPUs.
#pragma once

#include <string>

namespace lathe {

// Returns the machine's name; "" if the system doesn't tell.
std::string HostName();

// Returns the number of cores that this process may run on.
int UsableCores();

// Returns the number of NVIDIA GPUs that the driver lists; 0 without a driver.
int InstalledGpus(const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// Returns the number of those GPUs that CUDA_VISIBLE_DEVICES leaves to this process; 0 without a
// driver.
int VisibleGpus(const std::string& driver_folder = "/proc/driver/nvidia/gpus");

}  // namespace lathe
