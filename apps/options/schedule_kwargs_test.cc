#include "lathe/train/support/schedule_kwargs.h"

#include <gtest/gtest.h>

#include <string>

#include "lathe/apps/options/options_testing.h"

namespace lathe {
namespace {

TEST(ScheduleKwargsTest, ReadsAndChecks) {
  EXPECT_EQ(ParseScheduleKwargs("cosine", "{\"num_cycles\": 2}").num_cycles, 2);
  EXPECT_EQ(ParseScheduleKwargs("reduce_lr_on_plateau", "{\"patience\": 3}").patience, 3);
  const auto error = [](const std::string& schedule, const std::string& text) {
    return ErrorOf({"--lr_scheduler_type", schedule, "--lr_scheduler_kwargs", text});
  };
  EXPECT_EQ(error("cosine", "[1]"), "lr_scheduler_kwargs must be a JSON object but is \"[1]\"|");
  EXPECT_EQ(error("cosine", "{\"num_cycle\": 2}"),
            "lr_scheduler_kwargs: cosine has no option \"num_cycle\"|did you mean num_cycles?");
  EXPECT_EQ(error("polynomial", "{\"num_cycles\": 2}"),
            "lr_scheduler_kwargs: polynomial has no option \"num_cycles\"|its options are "
            "lr_end, power");
  EXPECT_EQ(error("linear", "{\"power\": 2}"),
            "lr_scheduler_kwargs: linear has no option \"power\"|"
            "leave lr_scheduler_kwargs out; linear has no options");
  for (const char* value : {"\"two\"", "true"}) {
    EXPECT_EQ(
        error("cosine", std::string("{\"num_cycles\": ") + value + "}"),
        std::string("lr_scheduler_kwargs: \"num_cycles\" has the wrong type: ") + value + "|");
  }
  EXPECT_EQ(error("inverse_sqrt", "{\"timescale\": 2.5}"),
            "lr_scheduler_kwargs: \"timescale\" has the wrong type: 2.5|");
}

}  // namespace
}  // namespace lathe
