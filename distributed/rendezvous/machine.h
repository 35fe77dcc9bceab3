// What this machine has for the processes of a job.
#pragma once

#include <string>

namespace lathe {

// The cores that this process may run on.
int UsableCores();

// The NVIDIA GPUs, as the driver lists them; 0 without a driver.
int InstalledGpus(const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// The NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves, as the driver lists them; 0 without a driver.
int VisibleGpus(const std::string& driver_folder = "/proc/driver/nvidia/gpus");

}  // namespace lathe
