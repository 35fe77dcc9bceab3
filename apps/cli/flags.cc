#include "lathe/apps/cli/flags.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/apps/cli/options_file.h"
#include "lathe/apps/cli/secret_names.h"
#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Flag = FlagTable::Flag;
using Values = std::vector<std::string>;

std::string Quoted(const std::string& text) { return '"' + text + '"'; }

Error BadValue(const Flag& flag, const std::string& wanted, const std::string& value) {
  const std::string must = "--" + flag.name + " must be " + wanted;
  if (EndsAsSecret(flag.name)) return InvalidArgument(must, "a token is given by --token TOKEN");
  return InvalidArgument(must + " but is " + Quoted(value));
}

// The shortest text for the number; a whole number has no decimals.
std::string ShortestText(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

template <typename T>
T ParseNumber(const Flag& flag, const std::string& text, const char* wanted) {
  T value{};
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (code != std::errc{} || stop != end || !std::isfinite(static_cast<double>(value))) {
    throw BadValue(flag, wanted, text);
  }
  if (value < flag.min) throw BadValue(flag, "at least " + ShortestText(flag.min), text);
  if (value > flag.max) throw BadValue(flag, "at most " + ShortestText(flag.max), text);
  return value;
}

std::optional<bool> ToBool(const std::string& given) {
  const std::string text = absl::AsciiStrToLower(given);
  for (const char* yes : {"true", "yes", "1", "on", "t", "y"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"false", "no", "0", "off", "f", "n"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

bool ParseBool(const Flag& flag, const std::string& text) {
  if (const auto value = ToBool(text)) return *value;
  throw BadValue(flag, "true or false", text);
}

// Returns the words that the command line would have for the option's value. Throws if the value's
// type is wrong.
Values ValuesInFile(const Flag& flag, const OptionInFile& option) {
  const nlohmann::json& value = option.value;
  const auto text_of = [](const nlohmann::json& v) {
    return v.is_string() ? v.get<std::string>() : DumpJson(v);
  };
  const auto wrong = [&](const std::string& wanted, const nlohmann::json& found,
                         const std::string& but = " but is ") {
    constexpr size_t kMost = 60;  // characters of a long value that the error shows
    const std::string must = option.where + Quoted(option.name) + " must be " + wanted;
    if (EndsAsSecret(option.name))
      return InvalidArgument(must.ends_with(',') ? must.substr(0, must.size() - 1) : must);
    const std::string text = text_of(found);
    return InvalidArgument(must + but +
                           (text.size() > kMost ? text.substr(0, kMost) + "..." : text));
  };
  if (flag.kind == Flag::Kind::kList && value.is_array()) {
    Values values;
    for (const auto& element : value) {
      if (element.is_structured() || element.is_boolean() || element.is_null()) {
        throw wrong("a list of names", element,
                    ", but its entry " + std::to_string(values.size() + 1) + " is ");
      }
      values.push_back(text_of(element));
    }
    return values;
  }
  if (flag.takes_json && value.is_object()) return {text_of(value)};
  if (value.is_structured()) {
    throw wrong(flag.kind == Flag::Kind::kBool   ? "true or false"
                : flag.kind == Flag::Kind::kList ? "a list of names"
                                                 : "one value",
                value);
  }
  // What stands for an option without a value is a switch, too.
  const bool may_be_true = !flag.implied_value.empty() && value.is_boolean();
  const bool is_name = flag.is_text || flag.kind == Flag::Kind::kList;
  const bool is_word = value.is_string() || value.is_number();
  if (is_name && !is_word && !may_be_true) throw wrong("text, in quotes,", value);
  return {text_of(value)};
}

nlohmann::json JsonOf(const auto& value) { return value; }
template <typename T>
nlohmann::json JsonOf(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

Flag& FlagTable::AddFlag(std::string name, std::string value_name, std::string help,
                         std::string shown) {
  if (groups_.empty()) groups_.push_back("Options");
  Flag& flag = flags_.emplace_back();
  flag.name = std::move(name);
  flag.value_name = std::move(value_name);
  flag.help = std::move(help);
  flag.default_value = std::move(shown);
  flag.group = static_cast<int>(groups_.size()) - 1;
  return flag;
}

Flag& FlagTable::Add(std::string name, bool* target, std::string help) {
  Flag& flag = AddFlag(std::move(name), "", std::move(help), *target ? "true" : "");
  flag.kind = Flag::Kind::kBool;
  flag.set = [target](const Flag& f, const Values& v) { *target = ParseBool(f, v[0]); };
  flag.present = [target] { return JsonOf(*target); };
  return flag;
}

Flag& FlagTable::Add(std::string name, std::optional<bool>* target, std::string help) {
  Flag& flag = AddFlag(std::move(name), "", std::move(help), "");
  flag.kind = Flag::Kind::kBool;
  flag.set = [target](const Flag& f, const Values& v) { *target = ParseBool(f, v[0]); };
  flag.present = [target] { return JsonOf(*target); };
  return flag;
}

Flag& FlagTable::Add(std::string name, int64_t* target, std::string help) {
  Flag& flag = AddFlag(std::move(name), "N", std::move(help), std::to_string(*target));
  flag.set = [target](const Flag& f, const Values& v) {
    const std::string wanted = "a whole number" + (f.word.empty() ? "" : " or " + f.word);
    *target = !f.word.empty() && v[0] == f.word ? f.word_value
                                                : ParseNumber<int64_t>(f, v[0], wanted.c_str());
  };
  flag.present = [target] { return JsonOf(*target); };
  return flag;
}

Flag& FlagTable::Add(std::string name, std::optional<int64_t>* target, std::string help) {
  Flag& flag = AddFlag(std::move(name), "N", std::move(help), "");
  flag.set = [target](const Flag& f, const Values& v) {
    *target = ParseNumber<int64_t>(f, v[0], "a whole number");
  };
  flag.present = [target] { return JsonOf(*target); };
  return flag;
}

Flag& FlagTable::Add(std::string name, double* target, std::string help) {
  Flag& flag = AddFlag(std::move(name), "X", std::move(help), ShortestText(*target));
  flag.set = [target](const Flag& f, const Values& v) {
    *target = ParseNumber<double>(f, v[0], "a number");
  };
  flag.present = [target] { return JsonOf(*target); };
  return flag;
}

Flag& FlagTable::Add(std::string name, std::string* target, std::string help) {
  Flag& flag = AddFlag(std::move(name), "NAME", std::move(help), *target);
  flag.is_text = true;
  flag.set = [target](const Flag& f, const Values& v) {
    if (f.check) f.check(v[0]);
    if (!f.choices.empty() &&
        std::find(f.choices.begin(), f.choices.end(), v[0]) == f.choices.end()) {
      const auto nearest = NearestName(v[0], f.choices);
      throw InvalidArgument("--" + f.name + " must be one of " + absl::StrJoin(f.choices, ", ") +
                                " but is " + Quoted(v[0]),
                            nearest ? "did you mean " + *nearest + "?" : "");
    }
    *target = v[0];
  };
  flag.present = [target] { return JsonOf(*target); };
  return flag;
}

Flag& FlagTable::Add(std::string name, Values* target, std::string help) {
  Flag& flag = AddFlag(std::move(name), "A,B", std::move(help), absl::StrJoin(*target, ","));
  flag.kind = Flag::Kind::kList;
  flag.set = [target](const Flag& f, const Values& values) {
    if (!f.adds_up || !f.given) target->clear();
    for (const auto& value : values) {
      if (f.keeps_commas && !value.empty()) {
        target->push_back(value);
        continue;
      }
      for (size_t begin = 0; begin <= value.size();) {
        const size_t end = std::min(value.find(',', begin), value.size());
        if (end == begin) throw BadValue(f, "a list of names", value);
        target->push_back(value.substr(begin, end - begin));
        if (f.check) f.check(target->back());
        begin = end + 1;
      }
    }
  };
  flag.present = [target] { return JsonOf(*target); };
  return flag;
}

void FlagTable::AddUnlisted(std::string name, Flag::Kind kind,
                            std::function<void(const Flag&, const Values&)> check) {
  Flag& flag = AddFlag(std::move(name), "", "", "");
  flag.kind = kind;
  flag.takes_json = true;
  flag.is_listed = false;
  flag.set = [check = std::move(check)](const Flag& f, const Values& values) {
    if (f.kind == Flag::Kind::kBool) return check(f, {ParseBool(f, values[0]) ? "true" : "false"});
    check(f, values);
  };
}

void FlagTable::AddAlias(std::string name, const std::string& of) {
  Check(has(of) && !has(name), "flags", "no place for the name ", name, " of ", of);
  aliases_[std::move(name)] = of;
}

Flag* FlagTable::Find(const std::string& name) {
  const auto alias = aliases_.find(name);
  const std::string& own = alias == aliases_.end() ? name : alias->second;
  for (Flag& flag : flags_) {
    if (flag.name == own) return &flag;
  }
  return nullptr;
}

bool FlagTable::has(const std::string& name) const {
  return aliases_.contains(name) ||
         std::any_of(flags_.begin(), flags_.end(), [&](const Flag& f) { return f.name == name; });
}

bool FlagTable::given(const std::string& name) const {
  return std::any_of(flags_.begin(), flags_.end(),
                     [&](const Flag& f) { return f.name == name && f.given; });
}

std::vector<std::pair<std::string, std::string>> FlagTable::GivenValues() const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const Flag& flag : flags_) {
    if (flag.given && flag.is_listed) values.emplace_back(flag.name, flag.given_value);
  }
  return values;
}

std::string FlagTable::HintFor(const std::string& name) const {
  const Values names = Names();
  const auto nearest = NearestName(name, names);
  return nearest ? "did you mean --" + *nearest + "?" : "--help lists the options";
}

// It is long because an option may be written in many ways.
Values FlagTable::Parse(const Values& given) {
  Values args = given;
  Values positional;
  const auto is_option = [](const std::string& arg) {
    return arg == "-h" || (arg.size() > 2 && arg.starts_with("--"));
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const auto rest = args.begin() + static_cast<int64_t>(i);
    if (args[i] == "--") {
      positional.insert(positional.end(), rest + 1, args.end());
      break;
    }
    if (!is_option(args[i])) {
      if (stops_at_positional_) return {rest, args.end()};
      positional.push_back(args[i]);
      continue;
    }
    if (args[i] == "-h") args[i] = "--help";
    const size_t equals = args[i].find('=');
    const std::string written =
        args[i].substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string name = written;
    std::replace(name.begin(), name.end(), '-', '_');
    Flag* flag = Find(name);
    if (flag == nullptr && name.starts_with("no_")) {
      if (Flag* positive = Find(name.substr(3));
          positive != nullptr && positive->kind == Flag::Kind::kBool) {
        if (equals != std::string::npos) {
          throw InvalidArgument("--" + written + " takes no value");
        }
        positive->set(*positive, {"false"});
        positive->given = true;
        positive->given_value = "false";
        continue;
      }
    }
    if (flag == nullptr) throw InvalidArgument("unknown option --" + written, HintFor(name));
    Values values;
    if (equals != std::string::npos) {
      values.push_back(args[i].substr(equals + 1));
    } else if (flag->kind == Flag::Kind::kBool) {
      const bool has_next = !stops_at_positional_ && i + 1 < args.size();
      // A secret behind a switch would be shown as an argument that nobody expects.
      const bool next_is_value = has_next && (ToBool(args[i + 1]).has_value() ||
                                              (EndsAsSecret(name) && !is_option(args[i + 1])));
      values.push_back(next_is_value ? args[++i] : "true");
    } else {
      const size_t most = flag->kind == Flag::Kind::kList ? args.size() : 1;
      while (values.size() < most && i + 1 < args.size() && args[i + 1] != "--" &&
             !is_option(args[i + 1])) {
        values.push_back(args[++i]);
      }
      if (values.empty() && !flag->implied_value.empty()) values = {flag->implied_value};
      if (values.empty()) throw InvalidArgument("--" + written + " needs a value");
    }
    flag->set(*flag, values);
    const std::string earlier = flag->adds_up && flag->given ? flag->given_value + "," : "";
    flag->given = true;
    flag->given_value = earlier + absl::StrJoin(values, ",");
  }
  return positional;
}

void FlagTable::ApplyFile(const std::string& path, const std::string& hint) {
  const std::vector<OptionInFile> options = ReadOptionsFile(path, hint);
  std::vector<std::pair<const Flag*, const OptionInFile*>> in_file;
  for (const OptionInFile& option : options) {
    Flag* flag = Find(option.name);
    if (flag == nullptr)
      throw InvalidArgument(option.where + "unknown option " + Quoted(option.name),
                            HintFor(option.name));
    if (flag->command_line_only) {
      throw InvalidArgument(option.where + Quoted(option.name) + " has no meaning in a file",
                            "pass it on the command line");
    }
    if (option.value.is_null()) continue;
    const auto earlier = std::find_if(in_file.begin(), in_file.end(),
                                      [flag](const auto& seen) { return seen.first == flag; });
    if (earlier != in_file.end()) {
      if (earlier->second->value == option.value) continue;
      throw InvalidArgument(option.where + Quoted(option.name) + " is another name of " +
                                Quoted(earlier->second->name) + ", which has another value",
                            "leave one of them out");
    }
    in_file.emplace_back(flag, &option);
    if (flag->given) continue;
    const Values values = ValuesInFile(*flag, option);
    if (values.empty()) continue;
    try {
      flag->set(*flag, values);
    } catch (const Error& e) {
      // The message has the option's own name. The file may have another one.
      const std::string other = option.name == flag->name ? "" : Quoted(option.name) + ": ";
      throw InvalidArgument(option.where + other + e.message(), e.hint());
    }
    flag->given = true;
    flag->given_value = absl::StrJoin(values, ",");
  }
}

std::vector<std::string> FlagTable::Names() const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (flag.is_listed) names.push_back(flag.name);
  }
  return names;
}

nlohmann::json FlagTable::PresentValues() const {
  nlohmann::json values = nlohmann::json::object();
  for (const Flag& flag : flags_) {
    if (!flag.command_line_only && flag.present) values[flag.name] = flag.present();
  }
  return values;
}

}  // namespace lathe
