// The options of every command of `lathe` that computes a model's outputs for texts.
//
//   struct PredictOptions : InferenceOptions { ... } options;
//   AddInferenceFlags(flags, &options);
//   flags.Parse(args);
//   ReadPrecision(flags, &options);
#pragma once

#include <cstdint>
#include <string>

#include "lathe/apps/cli/flags.h"
#include "lathe/core/hub/hub_settings.h"

namespace lathe {

struct InferenceOptions {
  int64_t batch_size = 64;
  int64_t max_seq_length = 0;  // cut to so many tokens; 0: the model's limit
  int64_t num_threads = 0;     // 0: all cores
  std::string device = "auto", mixed_precision = "no";
  bool bf16 = false, fp16 = false;  // short forms, which ReadPrecision reads
  bool deterministic = false;
  std::string invalid_utf8 = "error";  // or "replace"
  HubOptions hub;
};

// Adds an option for each field. `options` must outlive the table.
void AddInferenceFlags(FlagTable& flags, InferenceOptions* options);

// Sets mixed_precision as --mixed_precision, --bf16 and --fp16 say together. Call it after
// flags.Parse. Throws InvalidArgument if they contradict each other.
void ReadPrecision(const FlagTable& flags, InferenceOptions* options);

}  // namespace lathe
