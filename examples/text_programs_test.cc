// Runs the programs of this folder that read texts. In the texts one word decides the label.
#include "lathe/examples/example_testing.h"

namespace lathe {
namespace {

class TextProgramsTest : public ExampleTest {
 protected:
  // Expects that the program reaches the accuracy, and that two processes have the same losses.
  void Check(const std::vector<std::string>& program, double accuracy, double tolerance) {
    setenv("ACCELERATE_USE_CPU", "1", 1);
    alone_ = Run(program);
    ASSERT_FALSE(NumbersAfter("accuracy", alone_).empty()) << alone_;
    EXPECT_GE(NumbersAfter("accuracy", alone_).back(), accuracy) << alone_;
    ExpectSameLosses(alone_, 2, program, tolerance);
  }
  std::string alone_;
};

TEST_F(TextProgramsTest, TextConvolution) {
  Check({"examples/text_convolution", Path("model"), Path("train.csv"), Path("dev.csv")}, 0.95,
        1e-4);
}

}  // namespace
}  // namespace lathe
