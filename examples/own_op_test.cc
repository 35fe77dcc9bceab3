// Runs the program in own_op.cc with the host's loop, and with the CUDA kernels on the emulator.
#include <cmath>
#include <cstdlib>

#include "lathe/examples/example_testing.h"

namespace lathe {
namespace {

using OwnOpTest = ExampleTest;

TEST_F(OwnOpTest, LearnsTheLengthsOfPoints) {
  setenv("ACCELERATE_USE_CPU", "1", 1);
  const std::string alone = Run({"examples/own_op"});
  // The variance of the lengths is 8.
  EXPECT_LT(NumbersAfter("mse", alone).back(), 0.1) << alone;
  ExpectSameLosses(alone, 2, {"examples/own_op"}, 1e-4);

  unsetenv("ACCELERATE_USE_CPU");
  setenv("LATHE_USE_GPU", "1", 1);
  const std::string device = Run({"examples/own_op_emulated"});
  unsetenv("LATHE_USE_GPU");
  EXPECT_TRUE(device.starts_with("device cuda:0\n")) << device;
  const std::vector<double> on_host = NumbersAfter("loss", alone),
                            on_device = NumbersAfter("loss", device);
  ASSERT_EQ(on_device.size(), on_host.size()) << device;
  for (size_t i = 0; i < on_host.size(); ++i)
    EXPECT_NEAR(on_device[i] / on_host[i], 1, 1e-3) << alone << device;
}

}  // namespace
}  // namespace lathe
