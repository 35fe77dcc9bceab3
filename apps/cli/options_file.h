// Reads a file of options: one object of JSON or, if the name ends in .yaml or .yml, one map of
// YAML.
//
//   for (const OptionInFile& option : ReadOptionsFile("args.yaml", "see --help"))
//     std::cout << option.where << option.name << option.value;
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lathe {

struct OptionInFile {
  std::string name;
  std::string where;  // for errors: "args.json: " or, in YAML, "args.yaml:3: "
  nlohmann::json value;
  // A word of YAML without quotes, such as `no` or `5`. The option decides what it stands for, and
  // `value` is its text.
  bool is_plain = false;
};

// Returns true if an argument names a file of options: it ends in .json, .yaml or .yml and is no
// option such as --test_file=test.json.
bool IsOptionsFile(const std::string& argument);

// Returns the file's options. Throws an error of one line for a file that can't be read or is not
// of its format. Throws one, too, if it is no object of options or has a name twice. `hint` says
// what the file should hold.
std::vector<OptionInFile> ReadOptionsFile(const std::string& path, const std::string& hint);

}  // namespace lathe
