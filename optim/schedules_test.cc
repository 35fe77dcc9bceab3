#include "lathe/optim/schedules.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using nlohmann::json;

const json& Golden() {
  static const json golden = ParseJson(ReadFile("optim/testdata/optim_golden.json"));
  return golden;
}

ScheduleOptions OptionsOf(const json& o) {
  ScheduleOptions options;
  std::set<std::string> known;
  const auto read = [&](const char* key, auto& out) {
    known.insert(key);
    if (o.contains(key)) {
      if constexpr (requires { out.value(); }) {
        out = o[key].get<typename std::decay_t<decltype(out)>::value_type>();
      } else {
        out = o[key].get<std::decay_t<decltype(out)>>();
      }
    }
  };
  read("num_cycles", options.num_cycles);
  read("power", options.power);
  read("lr_end", options.lr_end);
  read("min_lr", options.min_lr);
  read("min_lr_rate", options.min_lr_rate);
  read("timescale", options.timescale);
  read("num_decay_steps", options.num_decay_steps);
  read("num_stable_steps", options.num_stable_steps);
  read("warmup_type", options.warmup_type);
  read("decay_type", options.decay_type);
  read("min_lr_ratio", options.min_lr_ratio);
  read("mode", options.mode);
  read("factor", options.factor);
  read("patience", options.patience);
  read("threshold", options.threshold);
  read("cooldown", options.cooldown);
  for (const auto& [key, value] : o.items()) {
    EXPECT_TRUE(known.count(key)) << key;
  }
  return options;
}

SGD MakeOptimizer(double lr) {
  return SGD({{.name = "w", .tensor = Tensor::Zeros({2}), .init = {}}}, {.lr = lr});
}

template <typename F>
std::string MessageOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(SchedulesTest, RatesEqualTransformers) {
  std::set<std::string> seen = {"reduce_lr_on_plateau"};
  for (const json& c : Golden()["schedules"]) {
    const std::string name = c["name"];
    SCOPED_TRACE(name + " " + DumpJson(c["options"]) + " " + DumpJson(c["num_warmup_steps"]));
    seen.insert(name);
    ScheduleOptions options = OptionsOf(c["options"]);
    options.num_warmup_steps = c["num_warmup_steps"];
    options.num_training_steps = c["num_training_steps"];
    SGD optimizer = MakeOptimizer(c["lr"]);
    auto scheduler = GetScheduler(name, optimizer, options);
    for (size_t step = 0; step < c["rates"].size(); ++step) {
      const double expected = c["rates"][step];
      EXPECT_NEAR(optimizer.lr(), expected, 1e-14 * c["lr"].get<double>()) << step;
      EXPECT_EQ(scheduler->last_lr(), optimizer.lr());
      scheduler->StepMetric(1);  // must change nothing
      scheduler->Step();
    }
  }
  EXPECT_EQ(seen, std::set<std::string>(ScheduleNames().begin(), ScheduleNames().end()));
  EXPECT_EQ(ScheduleNames().size(), 10u);
}

TEST(SchedulesTest, PlateauEqualsPyTorch) {
  for (const json& c : Golden()["plateaus"]) {
    SCOPED_TRACE(DumpJson(c["options"]));
    SGD optimizer = MakeOptimizer(c["lr"]);
    auto scheduler = GetScheduler("reduce_lr_on_plateau", optimizer, OptionsOf(c["options"]));
    for (size_t i = 0; i < c["metrics"].size(); ++i) {
      scheduler->Step();  // must change nothing
      scheduler->StepMetric(c["metrics"][i]);
      EXPECT_DOUBLE_EQ(optimizer.lr(), c["rates"][i].get<double>()) << i;
    }
  }
}

TEST(SchedulesTest, EachGroupKeepsItsOwnBaseRate) {
  std::vector<ParameterGroup> groups(2);
  groups[0].parameters = {{.name = "a", .tensor = Tensor::Zeros({1}), .init = {}}};
  groups[1].parameters = {{.name = "b", .tensor = Tensor::Zeros({1}), .init = {}}};
  groups[1].lr = 0.5;
  SGD optimizer(groups, {.lr = 0.1});
  auto scheduler =
      GetScheduler("linear", optimizer, {.num_warmup_steps = 2, .num_training_steps = 4});
  EXPECT_EQ(optimizer.lr(1), 0);
  scheduler->Step();
  EXPECT_DOUBLE_EQ(optimizer.lr(0), 0.05);
  EXPECT_DOUBLE_EQ(scheduler->last_lr(1), 0.25);
}

TEST(SchedulesTest, WrongOptionsAreReportedAtOnce) {
  SGD optimizer = MakeOptimizer(1e-3);
  const auto message = [&](const std::string& name, ScheduleOptions options) {
    options.num_warmup_steps = 5;
    options.num_training_steps = 10;
    return MessageOf([&] { GetScheduler(name, optimizer, options); });
  };
  const std::string unknown = message("linaer", {});
  EXPECT_TRUE(unknown.starts_with("unknown schedule \"linaer\"")) << unknown;
  EXPECT_NE(unknown.find("cosine_with_min_lr"), std::string::npos) << unknown;
  EXPECT_NE(message("polynomial", {.lr_end = 1}).find("must be smaller"), std::string::npos);
  EXPECT_NE(message("cosine_with_min_lr", {}).find("one of min_lr"), std::string::npos);
  EXPECT_NE(
      message("cosine_with_min_lr", {.min_lr = 0.0, .min_lr_rate = 0.0}).find("one of min_lr"),
      std::string::npos);
  EXPECT_NE(message("warmup_stable_decay", {}).find("num_decay_steps is required"),
            std::string::npos);
  EXPECT_NE(message("warmup_stable_decay", {.num_decay_steps = 2, .decay_type = "cubic"})
                .find("\"cubic\""),
            std::string::npos);
  EXPECT_NE(message("reduce_lr_on_plateau", {.mode = "best"}).find("min or max"),
            std::string::npos);
  EXPECT_NE(message("reduce_lr_on_plateau", {.factor = 1}).find("below 1"), std::string::npos);
  EXPECT_THROW(ScheduleMultiplier("reduce_lr_on_plateau", 0, 1, {}), Error);
}

TEST(SchedulesTest, OnesThatEndNeedTheirNumberOfSteps) {
  SGD optimizer = MakeOptimizer(1e-3);
  const auto message = [&](const std::string& name, const ScheduleOptions& options) {
    return MessageOf([&] { GetScheduler(name, optimizer, options); });
  };
  for (const std::string name : {"linear", "cosine", "cosine_with_restarts", "polynomial"}) {
    EXPECT_TRUE(message(name, {.num_warmup_steps = 2})
                    .starts_with("[" + name + "] num_training_steps is required"))
        << name;
  }
  EXPECT_TRUE(message("cosine_with_min_lr", {.min_lr = 0.0}).find("is required") !=
              std::string::npos);
  EXPECT_TRUE(message("warmup_stable_decay", {.num_decay_steps = 2}).find("is required") !=
              std::string::npos);
  for (const std::string name : {"constant", "constant_with_warmup", "inverse_sqrt"}) {
    EXPECT_EQ(message(name, {.num_warmup_steps = 2}), "nothing was thrown") << name;
  }
  EXPECT_EQ(message("warmup_stable_decay", {.num_decay_steps = 2, .num_stable_steps = 2}),
            message("constant", {}));
}

}  // namespace
}  // namespace lathe
