// Tests biases and sums of rows, in cuBLASLt's epilogues and in separate kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/base/log.h"
#include "lathe/core/cuda/gemm/gemm_testing.h"

namespace lathe::cuda {
namespace {

TEST_F(Gemms, SumRowsOfAInTheirEpilogue) {
  Try<BFloat16, float>(WithSums(40, 24, 17));
  EXPECT_TRUE(Fake().products.back().bias_gradient);
  Try<float, float>(WithSums(5, 3, 2));
  Try<Float16, float>(WithSums(5, 3, 2, false, 3));
  EXPECT_EQ(Fake().column_sums, 0);
  EXPECT_EQ(Fake().heuristics, 3);
  Try<BFloat16, float>(WithSums(40, 24, 17));
  EXPECT_EQ(Fake().heuristics, 3);
}

TEST_F(Gemms, SumRowsOfAApartWhereTheEpilogueCannot) {
  int sums = 0;
  const auto apart = [&](const Case& t) {
    Try<BFloat16, float>(t);
    Try<Float16, float>(t);
    Try<float, float>(t);
    sums += 3;
    EXPECT_EQ(Fake().column_sums, sums);
    for (const auto& product : Fake().products) EXPECT_FALSE(product.bias_gradient);
  };
  apart(WithSums(40, 24, 18, true));         // the epilogue overwrites
  apart(WithSums(40, 24, 18, false, 0, 1));  // an address that it can't write to
  apart(WithSums(4, 5, 0));
  apart(WithSums(4, 0, 5));
  apart(WithSums(4, 0, 5, true));
  apart(WithSums(0, 4, 5));
  UseDeterministicGemms(true);  // the order of its sums is unknown
  apart(WithSums(40, 24, 18));
  UseDeterministicGemms(false);
  Fake().has_bias_gradients = false;
  apart(WithSums(40, 24, 19));
  // The library isn't asked again, so nothing needs to be asked while a step is recorded.
  const int heuristics = Fake().heuristics;
  Fake().capturing = true;
  apart(WithSums(40, 24, 19));
  EXPECT_EQ(Fake().heuristics, heuristics);
}

TEST_F(Gemms, SumRowsOfAApartIfTheEpilogueFails) {
  Fake().bias_gradients_fail = true;
  for (int i = 0; i < 2; ++i) Try<BFloat16, float>(WithSums(39, 24, 17));
  EXPECT_EQ(Fake().column_sums, 2);
  EXPECT_EQ(Fake().products.size(), 3u);  // it is tried once
}

// An epilogue that was refused while a step was recorded is asked for again afterwards.
TEST_F(Gemms, AskAgainForWhatWasRefusedInRecordedWork) {
  Try<BFloat16, float>({40, 24, 20, true});
  Fake().capturing = true;
  Fake().has_bias_gradients = false;
  Try<BFloat16, float>(WithSums(40, 24, 20));
  EXPECT_EQ(Fake().column_sums, 1);
  Fake().capturing = false;
  Fake().has_bias_gradients = true;
  Try<BFloat16, float>(WithSums(40, 24, 20));
  EXPECT_EQ(Fake().column_sums, 1);
  EXPECT_TRUE(Fake().products.back().bias_gradient);
}

// Products of one row, one column or one summand have no epilogue for a bias.
TEST_F(Gemms, AddTheBiasApartWhereTheLibraryHasNoEpilogue) {
  int added = 0;
  const auto apart = [&](const Case& t) {
    Try<float, float>(t);
    Try<BFloat16, BFloat16>(t);
    Try<BFloat16, float>(t);
    Try<Float16, Float16>(t);
    Try<Float16, float>(t);
    added += 5;
    EXPECT_EQ(Fake().added_rows, added);
    for (const auto& product : Fake().products) EXPECT_FALSE(product.bias);
  };
  for (const int64_t pad : {0, 3}) {
    for (const int64_t shift : {0, 1, 8}) {
      apart({32, 1, 24, false, true, false, true, pad, shift});  // one label
      apart({1, 24, 16, false, true, false, true, pad, shift});  // one row
      apart({1, 1, 16, false, true, false, true, pad, shift});
      apart({8, 24, 1, true, false, false, true, pad, shift});
      apart({8, 24, 0, false, false, false, true, pad, shift});
    }
  }
  // These addresses are too little aligned for the epilogue.
  Fake().least_bias_alignment = 8;
  apart({32, 24, 17, false, true, false, true, 0, 1});
  apart({32, 24, 17, false, true, false, true, 0, 3});
  Fake().products.clear();
  Try<BFloat16, BFloat16>({32, 24, 17, false, true, false, true, 0, 8});
  EXPECT_EQ(Fake().added_rows, added);
  EXPECT_TRUE(Fake().products.back().bias);
  // The library isn't asked again, so nothing needs to be asked while a step is recorded.
  Fake().products.clear();
  const int heuristics = Fake().heuristics;
  Fake().capturing = true;
  apart({32, 1, 24, false, true, false, true});
  EXPECT_EQ(Fake().heuristics, heuristics);
  EXPECT_EQ(Fake().products.size(), 5u);
}

TEST_F(Gemms, AddTheBiasApartIfTheEpilogueFails) {
  Fake().biases_fail = true;
  for (int i = 0; i < 2; ++i) Try<BFloat16, BFloat16>({32, 24, 21, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 2);
  EXPECT_EQ(Fake().products.size(), 3u);  // it is tried once
  // The same holds for algorithms that fail when they are timed.
  TuneGemms(true);
  Fake().milliseconds = {5, 4};
  for (int i = 0; i < 2; ++i) Try<Float16, float>({32, 24, 21, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 4);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
}

// The debug log says once that a product has no epilogue, and nothing if all is well.
TEST_F(Gemms, SayWhatComesApart) {
  const auto said = [&](const Case& t) {
    ShowDebugLog(true);
    testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i) Try<BFloat16, BFloat16>(t);
    ShowDebugLog(false);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said({32, 24, 22, false, true, false, true}), "");
  const std::string none = said({32, 1, 22, false, true, false, true});
  EXPECT_TRUE(none.starts_with("debug: cuBLASLt has no algorithm for ")) << none;
  EXPECT_EQ(std::count(none.begin(), none.end(), '\n'), 1);
  Fake().biases_fail = true;
  const std::string failed = said({32, 24, 26, false, true, false, true});
  EXPECT_TRUE(failed.starts_with("debug: cuBLASLt refuses ")) << failed;
  EXPECT_EQ(std::count(failed.begin(), failed.end(), '\n'), 1);
}

// An epilogue that failed while work was recorded is tried again afterwards.
TEST_F(Gemms, TakeBiasesThatFailedWhileRecording) {
  Fake().capturing = Fake().biases_fail = true;
  Try<BFloat16, BFloat16>({32, 24, 27, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 1);
  Fake().capturing = Fake().biases_fail = false;
  Try<BFloat16, BFloat16>({32, 24, 27, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 1);
}

// A bias is also added separately in work that is recorded first, and with tuned algorithms.
TEST_F(Gemms, AddTheBiasApartWheneverItIsAskedFor) {
  Fake().capturing = true;
  Try<BFloat16, BFloat16>({32, 1, 25, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 1);
  Fake().capturing = false;
  TuneGemms(true);
  Fake().milliseconds = {5, 4};
  for (int i = 0; i < 2; ++i) Try<BFloat16, BFloat16>({32, 1, 25, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 3);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
  const int heuristics = Fake().heuristics;
  Fake().capturing = true;
  Try<BFloat16, BFloat16>({32, 1, 25, false, true, false, true});
  EXPECT_EQ(Fake().heuristics, heuristics);
  // It is an error if there is no algorithm even for the plain product.
  Fake().heuristic_fails = true;
  EXPECT_THROW((Try<BFloat16, BFloat16>({32, 1, 26, false, true, false, true})), Error);
}

}  // namespace
}  // namespace lathe::cuda
