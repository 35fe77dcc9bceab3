#include "lathe/models/config/rope_parameters.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/rotary/rotary_embedding.h"

namespace lathe {
namespace {

using nlohmann::json;

std::vector<float> Read(const json& config, const RopeKeys& keys = {}) {
  return ReadRotaryFrequencies(PretrainedConfig::FromJson(config), 8, keys);
}

std::string ErrorOf(const json& config, const RopeKeys& keys = {}) {
  try {
    Read(config, keys);
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was thrown";
}

TEST(RopeParameters, Theta) {
  EXPECT_EQ(Read(json::object()), RotaryFrequencies(8, 10000));
  EXPECT_EQ(Read(json::object(), {.default_theta = 1000}), RotaryFrequencies(8, 1000));
  EXPECT_EQ(Read({{"rope_theta", 7}}), RotaryFrequencies(8, 7));
  EXPECT_EQ(Read({{"rope_theta", nullptr}, {"rope_parameters", nullptr}}),
            RotaryFrequencies(8, 10000));
  EXPECT_EQ(Read({{"rope_theta", 7}, {"rope_parameters", {{"rope_theta", 9.5}}}}),
            RotaryFrequencies(8, 9.5));
  EXPECT_EQ(Read({{"local_theta", 7}}, {.theta = "local_theta"}), RotaryFrequencies(8, 7));
}

TEST(RopeParameters, KindsOfLayers) {
  const json config = {{"rope_parameters",
                        {{"full_attention", {{"rope_theta", 9}, {"rope_type", "default"}}},
                         {"sliding_attention", nullptr}}},
                       {"global_theta", 5},
                       {"local_theta", 6}};
  EXPECT_EQ(Read(config, {.theta = "global_theta", .layer_type = "full_attention"}),
            RotaryFrequencies(8, 9));
  EXPECT_EQ(Read(config, {.theta = "local_theta", .layer_type = "sliding_attention"}),
            RotaryFrequencies(8, 6));
  EXPECT_EQ(Read({{"rope_parameters", {{"rope_theta", 11}}}}, {.layer_type = "full_attention"}),
            RotaryFrequencies(8, 11));
}

TEST(RopeParameters, Linear) {
  std::vector<float> expected = RotaryFrequencies(8, 50);
  for (float& frequency : expected) frequency /= 4;
  EXPECT_EQ(
      Read({{"rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 50}, {"factor", 4.0}}}}),
      expected);
  EXPECT_EQ(Read({{"rope_theta", 50}, {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}),
            expected);
}

// As Transformers 5.24 has it: the older object stands for the newer one, or is added to each
// kind's.
TEST(RopeParameters, ScalingBesideParameters) {
  const json scaling = {{"rope_type", "linear"}, {"factor", 4}};
  const auto quarter = [](double theta) {
    std::vector<float> frequencies = RotaryFrequencies(8, theta);
    for (float& frequency : frequencies) frequency /= 4;
    return frequencies;
  };
  EXPECT_EQ(Read({{"rope_parameters", {{"rope_theta", 50}}}, {"rope_scaling", scaling}}),
            quarter(10000));
  EXPECT_EQ(Read({{"rope_parameters", {{"rope_theta", 50}}},
                  {"rope_scaling", scaling},
                  {"rope_theta", 60}}),
            quarter(60));
  const json kinds = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 50}}}};
  EXPECT_EQ(Read({{"rope_parameters", kinds}, {"rope_scaling", scaling}},
                 {.layer_type = "full_attention"}),
            quarter(50));
  EXPECT_EQ(Read({{"rope_parameters", {{"rope_theta", 50}}}, {"rope_scaling", json::object()}}),
            RotaryFrequencies(8, 50));
}

// With kinds of layers Transformers 5 computes with the rope_type "default" here, which can't be
// what the file means.
TEST(RopeParameters, OlderTypeWithKindsOfLayers) {
  const RopeKeys kind = {.layer_type = "full_attention"};
  for (const char* type : {"linear", "yarn"}) {
    EXPECT_EQ(
        ErrorOf({{"rope_scaling", {{"type", type}, {"factor", 2}}}}, kind),
        "config: \"rope_scaling\" has the type \"" + std::string(type) + "\" but no \"rope_type\"");
  }
  EXPECT_EQ(Read({{"rope_scaling", {{"type", "default"}, {"factor", 2}}}}, kind),
            RotaryFrequencies(8, 10000));
  EXPECT_EQ(Read({{"rope_scaling", {{"type", "yarn"}, {"rope_type", "default"}}}}, kind),
            RotaryFrequencies(8, 10000));
  // A kind's own older name counts, as in Transformers.
  std::vector<float> half = RotaryFrequencies(8, 10000);
  for (float& frequency : half) frequency /= 2;
  EXPECT_EQ(
      Read({{"rope_parameters", {{"full_attention", {{"type", "linear"}, {"factor", 2}}}}}}, kind),
      half);
}

TEST(RopeParameters, Errors) {
  EXPECT_EQ(ErrorOf({{"rope_theta", -1}}),
            "config: \"rope_theta\" must be a positive number but is -1");
  EXPECT_EQ(ErrorOf({{"rope_parameters", {{"rope_theta", "x"}}}}),
            "config: \"rope_parameters\": \"rope_theta\" must be a positive number but is \"x\"");
  EXPECT_EQ(ErrorOf({{"rope_parameters", 3}}),
            "config: \"rope_parameters\" must be an object but is 3");
  EXPECT_EQ(
      ErrorOf({{"rope_parameters", {{"full_attention", 3}}}}, {.layer_type = "full_attention"}),
      "config: \"rope_parameters\": \"full_attention\" must be an object but is 3");
  EXPECT_EQ(ErrorOf({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}}}}),
            "config: \"rope_scaling\": rope_type \"yarn\" is not supported; supported: default, "
            "linear");
  EXPECT_EQ(ErrorOf({{"rope_parameters", {{"rope_type", "linear"}}}}),
            "config: \"rope_parameters\": \"factor\" must be a number from 1 to 1e+06 but is null");
  for (const json& factor : {json(0.5), json(0), json(-2), json(1e7), json("2"), json(true)}) {
    EXPECT_EQ(ErrorOf({{"rope_scaling", {{"type", "linear"}, {"factor", factor}}}}),
              "config: \"rope_scaling\": \"factor\" must be a number from 1 to 1e+06 but is " +
                  DumpJson(factor));
  }
  for (const json& theta : {json(0), json(-2.5), json(false), json::array({1})}) {
    EXPECT_EQ(ErrorOf({{"rope_theta", theta}}),
              "config: \"rope_theta\" must be a positive number but is " + DumpJson(theta));
  }
  for (const json& part : {json(0.5), json(0), json(-1), json(2), json("1")}) {
    const std::string end = "\"partial_rotary_factor\" must be 1 but is " + DumpJson(part);
    EXPECT_EQ(ErrorOf({{"partial_rotary_factor", part}}), "config: " + end);
    EXPECT_EQ(ErrorOf({{"rope_parameters", {{"partial_rotary_factor", part}}}}),
              "config: \"rope_parameters\": " + end);
  }
  EXPECT_EQ(Read({{"partial_rotary_factor", 1.0}}), RotaryFrequencies(8, 10000));
  EXPECT_EQ(ErrorOf({{"rope_parameters", {{"full_attention", {{"rope_theta", 9}}}}}}),
            "config: \"rope_parameters\": \"full_attention\" is for one kind of layers, and this "
            "family has no kinds");
}

}  // namespace
}  // namespace lathe
