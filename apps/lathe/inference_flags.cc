#include "lathe/apps/lathe/inference_flags.h"

#include "lathe/apps/cli/hub_flags.h"
#include "lathe/apps/cli/precision.h"

namespace lathe {

void AddInferenceFlags(FlagTable& flags, InferenceOptions* options) {
  InferenceOptions& o = *options;
  flags.Add("batch_size", &o.batch_size, "number of texts that are computed together").Min(1);
  flags
      .Add("max_seq_length", &o.max_seq_length,
           "cut longer texts to N tokens; 0: the model's limit; finetune cuts to 128 by default")
      .Min(0);
  flags.Add("num_threads", &o.num_threads, "number of CPU threads; 0: all cores").Min(0).Max(1024);
  flags
      .Add("device", &o.device,
           "what computes: auto (a GPU if there is one), cpu, cuda or cuda:NUMBER")
      .ValueName("NAME");
  flags
      .Add("mixed_precision", &o.mixed_precision,
           "precision of activations and products: bf16 is bfloat16, fp16 is float16, on GPUs only")
      .Choices({"no", "bf16", "fp16"});
  flags.Add("bf16", &o.bf16, "short for --mixed_precision bf16");
  flags.Add("fp16", &o.fp16, "short for --mixed_precision fp16");
  flags.Add("deterministic", &o.deterministic,
            "compute the same bits in every run on a GPU, too; on the CPU this is always so");
  flags.Add("invalid_utf8", &o.invalid_utf8, "what happens to text that is not UTF-8")
      .Choices({"error", "replace"});
  AddHubFlags(flags, &o.hub);
}

void ReadPrecision(const FlagTable& flags, InferenceOptions* options) {
  options->mixed_precision =
      GivenPrecision(flags, options->mixed_precision, options->bf16, options->fp16).value_or("no");
}

}  // namespace lathe
