// What `finetune` can be told: run_glue's and TrainingArguments' names and defaults.
//
//   ParsedOptions parsed = ParseOptions({"--model_name_or_path", "bert", "--do_train", ...});
//   if (parsed.help) { std::cout << *parsed.help; return 0; }
//   Finetune(parsed.options);
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/cli/flags.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

struct ParsedOptions {
  FinetuneArguments options;
  // What was given that all processes of a job must have alike, as it was written.
  std::vector<std::pair<std::string, std::string>> shared;
  // The files and folders that were given, as absolute paths: alike on each machine.
  std::vector<std::pair<std::string, std::string>> files;
  std::optional<std::string> help;  // the text to print instead of running, if --help was given
};

// Reads and checks the arguments (without the program's name). Throws InvalidArgument for anything
// wrong with the options themselves; files are looked at later.
ParsedOptions ParseOptions(const std::vector<std::string>& args);

}  // namespace lathe
