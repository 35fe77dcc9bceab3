// What tests of options share: how they give arguments and see errors.
#pragma once

#include <string>
#include <vector>

#include "lathe/apps/options/options.h"
#include "lathe/core/base/error.h"

namespace lathe {

using Args = std::vector<std::string>;

// Parses the fewest arguments that are accepted, and `more`.
inline FinetuneArguments Parse(Args more) {
  Args args = {"--model_name_or_path", "m", "--train_file", "t.csv", "--do_train",
               "--output_dir",         "o"};
  args.insert(args.end(), more.begin(), more.end());
  return ParseOptions(args).options;
}

// Returns "message|hint" of the error that the arguments cause. If they are not `complete`, Parse
// adds the fewest that are accepted.
inline std::string ErrorOf(const Args& args, bool complete = false) {
  try {
    complete ? static_cast<void>(ParseOptions(args)) : static_cast<void>(Parse(args));
  } catch (const Error& e) {
    return e.message() + "|" + e.hint();
  }
  return "no error";
}

}  // namespace lathe
