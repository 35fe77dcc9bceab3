// Runs the program in table_mlp.cc on a table that is made here.
#include <random>

#include "lathe/core/checkpoint/hdf5_session.h"
#include "lathe/core/checkpoint/libraries.h"
#include "lathe/examples/example_testing.h"

namespace lathe {
namespace {

constexpr int kColumns = 8;

// Writes the rows as another program would: inputs [n, 8] of float32, and [n] of int64 under the
// name `target`.
void WriteTable(const std::string& path, const std::vector<float>& inputs,
                const std::string& target, const std::vector<int64_t>& targets) {
  const Hdf5Session session(path, /*writes=*/true);
  const Hdf5Library& h5 = Hdf5();
  Hdf5Handle file = session.CreateFile(path);
  const hsize_t sizes[2] = {targets.size(), kColumns};
  const auto write = [&](const char* name, int dims, hid_t type, const void* elements) {
    const Hdf5Handle space = session.Own(h5.Screate_simple(dims, sizes, nullptr), h5.Sclose);
    const Hdf5Handle dataset = session.Own(
        h5.Dcreate2(file.get(), name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        h5.Dclose);
    session.Checked(h5.Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, elements));
  };
  write("inputs", 2, h5.native_float, inputs.data());
  write(target.c_str(), 1, h5.native_int64, targets.data());
  session.CloseFile(file);
}

// Makes rows that lie around six points. Two points belong to each of three classes.
void MakeTable(const std::string& path, int rows, uint32_t seed,
               const std::string& target = "targets") {
  std::mt19937 points(1), random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> centers(6 * kColumns), inputs;
  for (float& x : centers) x = normal(points);
  std::vector<int64_t> targets;
  for (int i = 0; i < rows; ++i) {
    const auto point = static_cast<int64_t>(random() % 6);
    targets.push_back(point % 3);
    for (int64_t c = 0; c < kColumns; ++c)
      inputs.push_back(centers[static_cast<size_t>(point * kColumns + c)] + 0.4f * normal(random));
  }
  WriteTable(path, inputs, target, targets);
}

class TableMlpTest : public ExampleTest {
 protected:
  void SetUp() override {
    ExampleTest::SetUp();
    MakeTable(Path("train.h5"), 300, 2);
    MakeTable(Path("eval.h5"), 100, 3);
    program_ = {"examples/table_mlp", Path("train.h5"), Path("eval.h5")};
  }
  std::vector<std::string> program_;
};

// The last of ten batches has 12 samples, and three processes share batches of 32 unevenly.
TEST_F(TableMlpTest, LearnsTheClasses) {
  const std::string alone = Run(program_);
  EXPECT_EQ(NumbersAfter("loss", alone).size(), 50u) << alone;
  EXPECT_GE(NumbersAfter("accuracy", alone).back(), 0.95) << alone;
  for (const int processes : {1, 2, 3}) ExpectSameLosses(alone, processes, program_, 1e-6);
}

TEST_F(TableMlpTest, NamesTheColumnThatIsMissing) {
  MakeTable(Path("other.h5"), 20, 4, "classes");
  for (const int processes : {1, 2}) {
    const RunResult run = processes == 1
                              ? RunProgram(program_[0], {Path("other.h5"), Path("eval.h5")})
                              : Launch(2, {program_[0], Path("other.h5"), Path("eval.h5")});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_NE(run.err.find(Path("other.h5") + ": has no dataset \"targets\""), std::string::npos)
        << run.err;
  }
}

}  // namespace
}  // namespace lathe
