// Tests that ranks whose models differ in their configuration or their seed are refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/distributed/accelerator_testing.h"
#include "lathe/models/bert/bert.h"
#include "lathe/tests/tiny_bert.h"

namespace lathe {
namespace {

TEST(PreflightOfModels, OtherConfigurationOrSeed) {
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              accelerator.Prepare(*TinyBert({{"hidden_dropout_prob", env.rank == 0 ? 0.5 : 0.25}}));
            }),
            "[preflight] rank 1 has config hidden_dropout_prob 0.25 but rank 0 has config "
            "hidden_dropout_prob 0.5");
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              accelerator.Prepare(*AutoModelForSequenceClassification::FromConfig(
                  TinyBert()->config(), {.seed = env.rank == 0 ? 5u : 7u}));
            }),
            "[preflight] rank 1 has seed 7 but rank 0 has seed 5");
  // A model inside another module is compared, too.
  struct Outer : Module {
    explicit Outer(double dropout) {
      RegisterModule("encoder", TinyBert({{"hidden_dropout_prob", dropout}}));
    }
  };
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              Outer outer(env.rank == 0 ? 0.5 : 0.25);
              accelerator.Prepare(outer);
            }),
            "[preflight] rank 1 has encoder.config hidden_dropout_prob 0.25 but rank 0 has "
            "encoder.config hidden_dropout_prob 0.5");
  // So is a user's own model around an encoder.
  struct Own : Module {
    explicit Own(double dropout) {
      PretrainedConfig config = TinyBert()->config();
      config.json()["hidden_dropout_prob"] = dropout;
      Register<BertModel>("bert", config);
      Initialize(1);
    }
  };
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              Own own(env.rank == 0 ? 0.5 : 0.25);
              accelerator.Prepare(own);
            }),
            "[preflight] rank 1 has bert.config hidden_dropout_prob 0.25 but rank 0 has "
            "bert.config hidden_dropout_prob 0.5");
}

}  // namespace
}  // namespace lathe
