// Command-line options that set plain variables: a table of named, grouped, documented options.
//
//   struct Options { double lr = 5e-5; bool train = false; } options;
//   FlagTable flags("usage: prog [options]");
//   flags.Group("Training");
//   flags.Add("learning_rate", &options.lr, "peak learning rate").Min(0);
//   flags.Add("do_train", &options.train, "train");
//   std::vector<std::string> positional = flags.Parse({"--learning_rate", "3e-5", "--do_train"});
//
// An option is written `--name value` or `--name=value`. Dashes in a name may stand for
// underscores. A boolean is written `--name`, `--name true`, `--name=false` or `--no_name`. A list
// is written `a,b` or `a b`. If an option is given twice, the second value counts, but see AddUp.
// `--` ends the options. Wrong input throws InvalidArgument, perhaps after some variables were set.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/nearest_name.h"

namespace lathe {

class FlagTable {
 public:
  struct Flag {
    enum class Kind { kValue, kBool, kList };
    std::string name, value_name, help, default_value;
    int group = 0;
    Kind kind = Kind::kValue;
    double min = -std::numeric_limits<double>::infinity();
    double max = std::numeric_limits<double>::infinity();
    std::vector<std::string> choices;
    std::string implied_value;  // of the option without a value; empty: it needs one
    bool given = false;         // set by Parse or ApplyFile
    std::string given_value;
    bool command_line_only = false;
    bool is_text = false;       // a number or a list in a file is no value for it
    bool takes_json = false;    // text that is a JSON object, which a file may hold as it is
    bool is_listed = true;      // in Help, Names and GivenValues
    bool keeps_commas = false;  // the value of a list isn't split
    bool adds_up = false;       // a list that is given again gets longer
    // Throws for a text, or a name in a list, that deserves an error of its own; may be null.
    std::function<void(const std::string& value)> check = {};
    std::string word;  // that stands for word_value, a whole number
    int64_t word_value = 0;
    std::function<void(const Flag&, const std::vector<std::string>&)> set;
    std::function<nlohmann::json()> present;  // returns the present value; null: none

    Flag& Min(double value) { return min = value, *this; }
    Flag& Max(double value) { return max = value, *this; }
    Flag& Choices(std::vector<std::string> names) { return choices = std::move(names), *this; }
    Flag& CommandLineOnly() { return command_line_only = true, *this; }
    Flag& TakesJson() { return takes_json = true, *this; }
    Flag& Word(std::string text, int64_t value) {
      return word = std::move(text), word_value = value, *this;
    }
    Flag& CheckedBy(std::function<void(const std::string& value)> function) {
      return check = std::move(function), *this;
    }
    Flag& AddUp() { return adds_up = true, *this; }
    Flag& KeepCommas() { return keeps_commas = true, *this; }
    Flag& ImpliedValue(std::string value) { return implied_value = std::move(value), *this; }
    Flag& ValueName(std::string name_in_help) {
      return value_name = std::move(name_in_help), *this;
    }
  };

  explicit FlagTable(std::string usage) : usage_(std::move(usage)) {}

  void Group(std::string title) { groups_.push_back(std::move(title)); }
  // Adds an option that sets `*target`, which must outlive the table. Its present value is the
  // default that --help shows.
  Flag& Add(std::string name, bool* target, std::string help);
  Flag& Add(std::string name, int64_t* target, std::string help);
  Flag& Add(std::string name, double* target, std::string help);
  Flag& Add(std::string name, std::string* target, std::string help);
  Flag& Add(std::string name, std::optional<int64_t>* target, std::string help);
  Flag& Add(std::string name, std::optional<bool>* target, std::string help);
  Flag& Add(std::string name, std::vector<std::string>* target, std::string help);

  // Adds an option that sets no variable: `check` throws for the values that it refuses. Help,
  // Names and GivenValues leave it out.
  void AddUnlisted(std::string name, Flag::Kind kind,
                   std::function<void(const Flag&, const std::vector<std::string>&)> check);
  // Makes `name` another name of the option `of`, which must be there.
  void AddAlias(std::string name, const std::string& of);

  // Makes Parse stop at the first argument that belongs to no option: the rest is for another
  // program. A boolean's value must then be written as `--name=false`.
  void StopAtPositional() { stops_at_positional_ = true; }
  // Sets the variables and returns the arguments that belong to no option.
  std::vector<std::string> Parse(const std::vector<std::string>& args);
  // Sets the variables from a file of options (options_file.h), whose keys are their names. Options
  // that were given already keep their values: the command line overrides the file. Throws an error
  // of one line, with file and key, for an unknown key or a wrong value. `hint` says what the file
  // should hold.
  void ApplyFile(const std::string& path, const std::string& hint);

  bool has(const std::string& name) const;  // as an option or as another name of one
  bool given(const std::string& name) const;
  // The names and values of the options that were given, as they were written.
  std::vector<std::pair<std::string, std::string>> GivenValues() const;
  // The names of all options.
  std::vector<std::string> Names() const;
  // The present values of all options that are not for the command line only, by their names.
  nlohmann::json PresentValues() const;
  // Returns the help, in lines of at most so many columns; by default HelpWidth (help_text.h).
  std::string Help(std::optional<size_t> width = {}) const;

 private:
  Flag& AddFlag(std::string name, std::string value_name, std::string help, std::string shown);
  Flag* Find(const std::string& name);
  // Returns "did you mean --x?" or a pointer to --help.
  std::string HintFor(const std::string& name) const;

  std::string usage_;
  bool stops_at_positional_ = false;
  std::vector<std::string> groups_;
  std::deque<Flag> flags_;  // a deque keeps references to its elements valid
  std::map<std::string, std::string> aliases_;
};

}  // namespace lathe
