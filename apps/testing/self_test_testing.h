// Runs `lathe test` as a user does.
#pragma once

#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {

class SelfTestCommandTest : public CliTest {
 protected:
  // `program` is "lathe" or "lathe_emulated".
  explicit SelfTestCommandTest(std::string program) : program_(std::move(program)) {}
  void SetUp() override {
    CliTest::SetUp();
    setenv("TMPDIR", root_.c_str(), 1);
  }

  RunResult Test(std::vector<std::string> options) const {
    options.insert(options.begin(), "test");
    return RunProgram(program_, options);
  }
  // Expects that all checks pass, and `err` on standard error. `tested` and `reference` say what
  // was compared, such as "2 processes on the CPU in float32".
  static void ExpectPassed(const RunResult& run, const std::string& tested,
                           const std::string& reference, const std::string& err = "") {
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_EQ(run.err, err);
    EXPECT_EQ(run.out.substr(0, run.out.find('\n')),
              "a tiny BERT, 30 steps: " + tested + ", compared with " + reference);
    EXPECT_TRUE(run.out.ends_with("\nall is well\n")) << run.out;
  }

 private:
  std::string program_;
};

}  // namespace lathe
