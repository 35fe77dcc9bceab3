// Reads the options of `finetune` from a command line.
//
//   ParsedOptions parsed = ParseOptions({"--model_name_or_path", "bert", "--do_train", ...});
//   if (parsed.help) { std::cout << *parsed.help; return 0; }
//   Finetune(parsed.options);
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/cli/flags.h"
#include "lathe/train/rows/trained_columns.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

struct ParsedOptions {
  FinetuneArguments options;
  // The given options that must agree on all ranks of a job, as they were written.
  std::vector<std::pair<std::string, std::string>> shared;
  // The given files and folders, as absolute paths. They must agree on the ranks of one machine.
  std::vector<std::pair<std::string, std::string>> files;
  // The values of all options by their names, given or not, but for the Hub's token.
  nlohmann::json values;
  // The columns that no option names, which become those of the training of the model. A training
  // and the tasks of GLUE leave none open.
  OpenColumns open_columns = OpenColumns::None();
  std::optional<std::string> help;  // if --help was given: the text to print instead of running
};

// Reads and checks the arguments (without the program's name). Throws InvalidArgument for anything
// that is wrong with the options themselves. Files are looked at later. All texts of this process
// name options as flags from then on (NameOptionsAsFlags).
ParsedOptions ParseOptions(const std::vector<std::string>& args);

}  // namespace lathe
