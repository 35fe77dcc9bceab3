#include "lathe/apps/options/flag_groups.h"
#include "lathe/core/base/error.h"

namespace lathe {

void AddCheckpointFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Checkpoints (Ctrl-C, SIGTERM and SIGUSR1 save one, too)");
  flags
      .Add("save_strategy", &o.save_strategy,
           "when to save a checkpoint, with all that is needed to go on, in "
           "--output_dir/checkpoint-STEP; steps if --save_steps or --save_seconds is given")
      .Choices({"no", "steps", "epoch", "best"});
  flags
      .Add("save_steps", &o.save_steps,
           "with --save_strategy steps, save every X steps; below 1: a share of all steps")
      .Min(0)
      .Max(kMostSteps);
  flags
      .Add("save_seconds", &o.save_seconds,
           "with any --save_strategy but no, save X seconds after the last time, too; 0: never")
      .Min(0)
      .Max(1e9);
  flags
      .Add("save_total_limit", &o.save_total_limit,
           "keep N checkpoints, the newest and the best one; both stay even if N is 1 (default: "
           "all)")
      .Min(1);
  flags.Add(
      "save_only_model", &o.save_only_model,
      "save the model alone, which takes a third of the space; no training can go on from it");
  flags
      .Add("save_failure", &o.save_failure,
           "what happens if a checkpoint can't be written: continue warns and goes on training")
      .Choices({"continue", "stop"});
  flags
      .Add("resume_from_checkpoint", &o.resume_from_checkpoint,
           "go on from this checkpoint; true or nothing: from the newest whole one in "
           "--output_dir")
      .ValueName("DIR")
      .ImpliedValue("true")
      .CheckedBy([](const std::string& value) {
        if (!value.empty()) return;
        throw InvalidArgument("--resume_from_checkpoint has an empty value",
                              "is a shell variable empty? true, or the option alone, takes the "
                              "newest checkpoint in --output_dir");
      });
  flags.Add("resume_anyway", &o.resume_anyway,
            "go on although data or options that decide on the results have changed");
  flags.Add("ignore_data_skip", &o.ignore_data_skip,
            "accepted and without effect, since no time is spent on data that were passed");
}

}  // namespace lathe
