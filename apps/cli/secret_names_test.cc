#include "lathe/apps/cli/secret_names.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(SecretNamesTest, VariablesMayHoldThemAnywhereInTheirName) {
  for (const char* name : {"HF_TOKEN", "AWS_ACCESS_KEY_ID", "db_passwd", "proxy-authorization"})
    EXPECT_TRUE(MayNameSecret(name)) << name;
  for (const char* name : {"", "HOME", "A"}) EXPECT_FALSE(MayNameSecret(name)) << name;
}

TEST(SecretNamesTest, OptionsHoldThemIfTheirNameEndsSo) {
  for (const char* name : {"token", "hub_token", "--push-to-hub-token", "use_auth_token", "-key",
                           "--api-key", "password", "HF_TOKEN"})
    EXPECT_TRUE(EndsAsSecret(name)) << name;
  for (const char* name :
       {"", "tokenizer_name", "include_num_input_tokens_seen", "--key-file", "seed"})
    EXPECT_FALSE(EndsAsSecret(name)) << name;
}

TEST(SecretNamesTest, AWordEndsBeforeASecret) {
  EXPECT_EQ(WithoutSecret("HF_TOKEN=hf_secret"), "HF_TOKEN=");
  EXPECT_EQ(WithoutSecret("--export=ALL,HF_TOKEN=hf_secret,B=1"), "--export=ALL,HF_TOKEN=");
  for (const char* word : {"", "hf_secret", "A=1", "--seed=1,B=2"})
    EXPECT_EQ(WithoutSecret(word), word);
}

}  // namespace
}  // namespace lathe
