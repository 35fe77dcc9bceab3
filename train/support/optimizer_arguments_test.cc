#include "lathe/train/support/optimizer_arguments.h"

#include <gtest/gtest.h>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

TrainingArguments Arguments(const std::string& optim, const std::string& optim_args = "") {
  TrainingArguments arguments;
  arguments.optim = optim;
  arguments.optim_args = optim_args;
  return arguments;
}

// Returns "message|hint" of the error.
std::string ErrorOf(const std::string& optim, const std::string& optim_args = "") {
  try {
    CheckOptimizer(Arguments(optim, optim_args));
  } catch (const Error& e) {
    return e.message() + "|" + e.hint();
  }
  return "no error";
}

TEST(OptimizerArgumentsTest, SGDHasTrainersOptions) {
  TrainingArguments arguments = Arguments("sgd");
  arguments.learning_rate = 0.5;
  arguments.weight_decay = 0.25;
  const SGDOptions plain = SGDOptionsOf(arguments);
  EXPECT_EQ(plain.lr, 0.5);
  EXPECT_EQ(plain.weight_decay, 0.25);
  EXPECT_EQ(plain.momentum, 0);
  EXPECT_EQ(plain.dampening, 0);
  EXPECT_FALSE(plain.nesterov);
  arguments.optim_args = " momentum = 0.9, nesterov=True ";
  EXPECT_EQ(SGDOptionsOf(arguments).momentum, 0.9);
  EXPECT_TRUE(SGDOptionsOf(arguments).nesterov);
  arguments.optim_args = "dampening=1e-1,momentum=0.5,nesterov=no";
  EXPECT_EQ(SGDOptionsOf(arguments).dampening, 0.1);
  EXPECT_FALSE(SGDOptionsOf(arguments).nesterov);
}

TEST(OptimizerArgumentsTest, IsDescribedForPeople) {
  EXPECT_EQ(DescribeOptimizer(Arguments("adamw_torch_fused")),
            "AdamW with betas=(0.9,0.999), epsilon=1e-08 and weight_decay=0.0");
  EXPECT_EQ(DescribeOptimizer(Arguments("sgd", "momentum=0.9")),
            "SGD with momentum=0.9, dampening=0.0, nesterov=false and weight_decay=0.0");
  EXPECT_EQ(DescribeOptimizer(Arguments("rmsprop", "centered=yes,alpha=0.9")),
            "RMSprop with momentum=0.0, alpha=0.9, eps=1e-08, centered=true and weight_decay=0.0");
  EXPECT_EQ(DescribeOptimizer(Arguments("adagrad", "lr_decay=0.5")),
            "Adagrad with lr_decay=0.5, eps=1e-10 and weight_decay=0.0");
  EXPECT_EQ(DescribeOptimizer(Arguments("lion")),
            "Lion with beta1=0.9, beta2=0.99 and weight_decay=0.0");
  EXPECT_EQ(DescribeOptimizer(Arguments("adafactor")), "Adafactor with weight_decay=0.0");
}

TEST(OptimizerArgumentsTest, MistakesAreNamed) {
  for (const std::string& name : OptimizerNames()) EXPECT_EQ(ErrorOf(name), "no error") << name;
  EXPECT_EQ(ErrorOf("adamw_torch", "  "), "no error");
  EXPECT_EQ(ErrorOf("lomo"),
            "optim must be one of adamw_torch, adamw_torch_fused, adamw_hf, sgd, adafactor, lion, "
            "rmsprop, adagrad but is \"lomo\"|leave it out for AdamW");
  EXPECT_EQ(
      ErrorOf("adamw_torch", "momentum=0.9"),
      "optim_args is for optim sgd, rmsprop, adagrad and lion, and the optimizer is AdamW|set "
      "adam_beta1, adam_beta2 and adam_epsilon instead");
  EXPECT_EQ(ErrorOf("adafactor", "eps=1"),
            "optim_args is for optim sgd, rmsprop, adagrad and lion, and the optimizer is "
            "Adafactor|leave it out");
  EXPECT_EQ(ErrorOf("rmsprop", "nesterov=1"),
            "optim_args: rmsprop has no option \"nesterov\"|its options are momentum, alpha, eps, "
            "centered");
  EXPECT_EQ(ErrorOf("lion", "beta2=1"), "optim_args: beta2 must be below 1 but is \"1\"|");
  for (const std::string text : {"momentum", "momentum=", "=0.9", "momentum=0.9,", "a=b=c"}) {
    EXPECT_EQ(ErrorOf("sgd", text), "optim_args must be a list of NAME=VALUE but is \"" + text +
                                        "\"|write it as in momentum=0.9,nesterov=true");
  }
  EXPECT_EQ(ErrorOf("sgd", "momentum=0.9,momentum=0.8"),
            "optim_args has momentum twice|leave one of them out");
  EXPECT_EQ(ErrorOf("sgd", "momentun=0.9"),
            "optim_args: sgd has no option \"momentun\"|did you mean momentum?");
  EXPECT_EQ(
      ErrorOf("sgd", "betas=0.9"),
      "optim_args: sgd has no option \"betas\"|its options are momentum, dampening, nesterov");
  EXPECT_EQ(ErrorOf("sgd", "weight_decay=0.1"),
            "optim_args: weight_decay has no effect, as with Trainer|set weight_decay instead");
  EXPECT_EQ(ErrorOf("sgd", "lr=0.1"),
            "optim_args: lr has no effect, as with Trainer|set learning_rate instead");
  for (const std::string value : {"-1", "nan", "inf", "fast"}) {
    EXPECT_EQ(ErrorOf("sgd", "momentum=" + value),
              "optim_args: momentum must be a number from 0 but is \"" + value + "\"|");
  }
  EXPECT_EQ(ErrorOf("sgd", "momentum=0.9,nesterov=maybe"),
            "optim_args: nesterov must be true or false but is \"maybe\"|");
  for (const char* text : {"nesterov=true", "momentum=0.9,nesterov=true,dampening=0.1"}) {
    EXPECT_EQ(ErrorOf("sgd", text),
              "optim_args: nesterov needs a momentum and no dampening|write it as in "
              "momentum=0.9,nesterov=true");
  }
}

}  // namespace
}  // namespace lathe
