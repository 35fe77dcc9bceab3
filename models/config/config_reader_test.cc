#include "lathe/models/config/config_reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

TEST(ConfigReaderTest, AWrongActivationNamesTheFileOnce) {
  const auto error_of = [](const Json& value) -> std::string {
    const PretrainedConfig config = PretrainedConfig::FromJson({{"hidden_act", value}});
    const Json defaults = {{"hidden_act", "gelu"}};
    try {
      ConfigReader(config, defaults).Activation("hidden_act");
    } catch (const Error& error) {
      EXPECT_NE(error.hint(), "");
      return error.message();
    }
    return "no error";
  };
  EXPECT_EQ(error_of("relu"), "no error");
  EXPECT_EQ(error_of(nullptr), "no error");
  EXPECT_EQ(error_of(7), "config: \"hidden_act\" must be a text but is 7");
  EXPECT_EQ(error_of({"gelu"}), "config: \"hidden_act\" must be a text but is [\"gelu\"]");
  EXPECT_EQ(error_of("step"), "config: \"hidden_act\": unknown activation \"step\"");
}

}  // namespace
}  // namespace lathe
