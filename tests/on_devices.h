// Fixtures for tests whose processes have a device each: a GPU, or one of three emulated devices.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include "lathe/core/device_backend.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {

// Only the ranks' processes ask for devices, because this process forks.
inline bool Emulated() { return FindDeviceBackend()->DescribeBuild() == "emulated CUDA"; }
inline int NumDevices() { return Emulated() ? 3 : VisibleGpus(); }

class OnDevices : public testing::Test {
 protected:
  void SetUp() override {
    if (FindDeviceBackend() == nullptr) GTEST_SKIP() << "built without CUDA";
    if (Emulated()) setenv("LATHE_EMULATOR_DEVICES", "3", 1);
    if (NumDevices() < Needed()) GTEST_SKIP() << "needs " << Needed() << " GPUs";
  }
  virtual int Needed() const { return 2; }
};

class OnOneDevice : public OnDevices {
  int Needed() const override { return 1; }
};

}  // namespace lathe
