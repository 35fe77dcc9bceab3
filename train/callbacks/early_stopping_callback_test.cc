#include "lathe/train/callbacks/early_stopping_callback.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

TrainingArguments Arguments(const std::string& metric = "loss") {
  TrainingArguments arguments;
  arguments.eval_strategy = "epoch";
  arguments.metric_for_best_model = metric;
  return arguments;
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

// A training whose evaluations give the metrics that a test says.
class Evaluations {
 public:
  Evaluations(EarlyStoppingCallback& callback, const TrainingArguments& arguments)
      : callback_(callback), arguments_(arguments) {}

  void Begin() { callback_.OnTrainBegin(arguments_, state_, control_); }
  // Does what the Trainer does, which compares with the best metric before it calls the callbacks.
  void Add(double metric) {
    ++state_.global_step;
    if (!state_.best_metric || (GreaterIsBetter(arguments_) ? metric > *state_.best_metric
                                                            : metric < *state_.best_metric)) {
      state_.best_metric = metric;
      state_.best_global_step = state_.global_step;
    }
    callback_.OnEvaluate(arguments_, state_, control_, {{BestModelMetric(arguments_), metric}});
  }
  bool stopped() const { return control_.should_training_stop; }
  TrainerState& state() { return state_; }

 private:
  EarlyStoppingCallback& callback_;
  TrainingArguments arguments_;
  TrainerState state_;
  TrainerControl control_;
};

int64_t CountOf(const EarlyStoppingCallback& callback) {
  return callback.State().at("attributes").at("early_stopping_patience_counter");
}

TEST(EarlyStoppingCallbackTest, CountsAsTransformersDoes) {
  const Json golden = ParseJson(ReadFile("train/callbacks/testdata/early_stopping.json"));
  ASSERT_GT(golden.at("cases").size(), 50u);
  for (const Json& each : golden.at("cases")) {
    EarlyStoppingCallback callback(each.at("patience"), each.at("threshold"));
    Evaluations evaluations(callback, Arguments(each.at("metric")));
    evaluations.Begin();
    std::vector<int64_t> counts;
    for (const double value : each.at("values")) {
      evaluations.Add(value);
      counts.push_back(CountOf(callback));
      if (evaluations.stopped()) break;
    }
    EXPECT_EQ(counts, each.at("counts").get<std::vector<int64_t>>()) << each;
    EXPECT_EQ(evaluations.stopped(), each.at("stops").get<bool>()) << each;
    EXPECT_EQ(callback.reason().empty(), !evaluations.stopped());
  }
}

TEST(EarlyStoppingCallbackTest, SaysWhyItStops) {
  EarlyStoppingCallback callback(2, 0.5);
  Evaluations evaluations(callback, Arguments());
  evaluations.Begin();
  for (const double loss : {1.0, 0.75, 0.8}) evaluations.Add(loss);
  EXPECT_EQ(callback.reason(),
            "eval_loss has not improved by more than 0.5 for 2 evaluations; its best value, 0.75, "
            "is that of step 2");
}

// The state is that of Transformers' callback. A training that goes on counts on.
TEST(EarlyStoppingCallbackTest, GoesOnFromItsState) {
  EarlyStoppingCallback first(2);
  Evaluations before(first, Arguments());
  before.Begin();
  for (const double loss : {1.0, 0.5, 0.5}) before.Add(loss);
  const Json state = first.State();
  EXPECT_EQ(state,
            Json({{"args", {{"early_stopping_patience", 2}, {"early_stopping_threshold", 0.0}}},
                  {"attributes", {{"early_stopping_patience_counter", 1}}}}));

  EarlyStoppingCallback second(2);
  Evaluations after(second, Arguments());
  second.LoadState(state);
  after.state() = before.state();
  after.Begin();
  EXPECT_FALSE(after.stopped());
  after.Add(0.6);
  EXPECT_TRUE(after.stopped());

  // After the evaluation that has ended a training, it is over; with more patience it is not.
  for (const int64_t patience : {2, 3}) {
    EarlyStoppingCallback third(patience);
    Evaluations later(third, Arguments());
    third.LoadState(second.State());
    later.state() = after.state();
    later.Begin();
    EXPECT_EQ(later.stopped(), patience == 2);
  }
}

TEST(EarlyStoppingCallbackTest, CountsAnewInAnotherTraining) {
  EarlyStoppingCallback callback(2);
  Evaluations first(callback, Arguments());
  first.Begin();
  for (const double loss : {1.0, 1.0, 1.0}) first.Add(loss);
  EXPECT_TRUE(first.stopped());
  Evaluations second(callback, Arguments());
  second.Begin();
  EXPECT_FALSE(second.stopped());
  EXPECT_EQ(CountOf(callback), 0);
  EXPECT_EQ(callback.reason(), "");
}

TEST(EarlyStoppingCallbackTest, RefusesWhatMakesNoSense) {
  EXPECT_EQ(ErrorOf([] { EarlyStoppingCallback(0); }),
            "[early_stopping] patience must be at least 1 but is 0");
  EXPECT_EQ(ErrorOf([] { EarlyStoppingCallback(1, -0.5); }),
            "[early_stopping] threshold must be at least 0 but is -0.5");
  EarlyStoppingCallback callback;
  const auto begin = [&](const TrainingArguments& arguments) {
    return ErrorOf([&] { Evaluations(callback, arguments).Begin(); });
  };
  EXPECT_EQ(begin(TrainingArguments()), "early stopping needs evaluations while training");
  EXPECT_EQ(begin(Arguments("")), "early stopping needs a metric to compare");
  const auto load = [&](const Json& attributes) {
    return ErrorOf([&] { callback.LoadState({{"attributes", attributes}}); });
  };
  EXPECT_EQ(load({{"early_stopping_patience_counter", -1}}),
            "early_stopping_patience_counter is negative");
  EXPECT_EQ(load(Json::object()),
            "[early_stopping] the state has no \"early_stopping_patience_counter\"");
  EXPECT_EQ(load({{"early_stopping_patience_counter", "x"}}),
            "[early_stopping] \"early_stopping_patience_counter\" of the state has a wrong type");
}

}  // namespace
}  // namespace lathe
