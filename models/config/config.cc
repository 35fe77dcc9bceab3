#include "lathe/models/config/config.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/nearest_name.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Returns the value of a key, or null if the key doesn't count as given. A JSON null means "not
// set" in Transformers' files.
const Json* Find(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// No task has so many, and each gets a name.
constexpr int64_t kMostLabels = 1'000'000;

constexpr char kCorrectFile[] = "correct the file or take it from the model's source again";

Error Wrong(const std::string& path, const std::string& key, const std::string& must) {
  return WrongConfig(path, {key}, "\"" + key + "\" must be " + must, kCorrectFile);
}

// Returns `value` as a whole number; empty if it is none. 12.0 is one, as it is for Transformers.
std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t n = value.get<uint64_t>();
    return n <= static_cast<uint64_t>(INT64_MAX) ? std::optional<int64_t>(n) : std::nullopt;
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  if (value.is_number_float()) {
    const double x = value.get<double>();
    if (std::trunc(x) == x && std::abs(x) < 0x1p53) {
      return static_cast<int64_t>(x);
    }
  }
  return std::nullopt;
}

// Returns the label id that a key of id2label holds as a string.
int64_t LabelId(const std::string& path, const std::string& key) {
  int64_t id;
  if (!absl::SimpleAtoi(key, &id) || id < 0) {
    throw Wrong(path, "id2label", "an object from 0, 1, ... to names but has \"" + key + "\"");
  }
  return id;
}

// Returns `text` as a value of the same type as `old`. If the key has no value yet, the text itself
// decides the type.
Json ParseAs(const std::string& key, const std::string& text, const Json* old) {
  const auto wrong = [&](const char* must) {
    return InvalidArgument("override " + key + "=" + text + ": must be " + must);
  };
  if (old == nullptr) {
    CheckJsonNesting(text, "override " + key);
    Json parsed = ParseJsonOrDiscard(text);
    return parsed.is_discarded() ? Json(text) : parsed;
  }
  if (old->is_boolean()) {
    bool value;
    if (!absl::SimpleAtob(text, &value)) {
      throw wrong("true or false");
    }
    return value;
  }
  if (old->is_number_integer()) {
    int64_t value;
    if (absl::SimpleAtoi(text, &value)) return value;
    // A file may hold the rate 0.0 or 1.0 as 0 or 1. Who reads a count refuses a fraction.
    double rate;
    const bool may_be_rate = *old == 0 || *old == 1;
    if (!may_be_rate || !absl::SimpleAtod(text, &rate) || !std::isfinite(rate)) {
      throw wrong("a whole number");
    }
    return rate;
  }
  if (old->is_number()) {
    double value;
    if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
      throw wrong("a number");
    }
    return value;
  }
  if (old->is_string()) {
    return text;
  }
  throw InvalidArgument("override " + key + "=" + text +
                        ": only numbers, texts, true and false can be overridden");
}

}  // namespace

Error WrongConfig(const std::string& path, std::vector<std::string> keys, const std::string& what,
                  std::string hint, std::source_location location) {
  return InvalidArgument(path + ": " + what, std::move(hint), location)
      .WithDetail(WrongConfigValues{std::move(keys), what});
}

PretrainedConfig::PretrainedConfig() : json_(std::make_unique<Json>(Json::object())) {}
PretrainedConfig::PretrainedConfig(const PretrainedConfig& other)
    : json_(std::make_unique<Json>(other.json())), path_(other.path_) {}
PretrainedConfig& PretrainedConfig::operator=(const PretrainedConfig& other) {
  *json_ = other.json();
  path_ = other.path_;
  return *this;
}
PretrainedConfig::~PretrainedConfig() = default;

PretrainedConfig PretrainedConfig::FromPretrained(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "config.json").string();
  if (!std::filesystem::exists(path)) {
    throw NotFound(path + ": No such file or directory",
                   "name a folder with a model as save_pretrained writes it");
  }
  return FromText(ReadRegularFile(path), path);
}

PretrainedConfig PretrainedConfig::FromText(const std::string& text, const std::string& path) {
  CheckJsonNesting(text, path);
  try {
    return FromJson(ParseJson(text), path);
  } catch (const Json::parse_error& e) {
    const size_t at = std::min(e.byte > 0 ? e.byte - 1 : 0, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
    std::string_view what = e.what();
    // The library's text is "[json.exception.parse_error.101] parse error at line 3, column 4:
    // what". The message names the line already, so only the end is kept.
    if (const size_t colon = what.find(": "); colon != std::string_view::npos) {
      what.remove_prefix(colon + 2);
    }
    throw InvalidArgument(path + ":" + std::to_string(line) + ": not JSON: " + std::string(what),
                          kCorrectFile);
  } catch (const Json::out_of_range& e) {
    throw InvalidArgument(path + ": " + WithoutTag(e.what()), kCorrectFile);
  }
}

PretrainedConfig PretrainedConfig::FromJson(Json value, std::string path) {
  if (!value.is_object()) {
    throw InvalidArgument(path + ": must be a JSON object", kCorrectFile);
  }
  PretrainedConfig config;
  config.json() = std::move(value);
  config.path_ = std::move(path);
  return config;
}

std::string PretrainedConfig::model_type() const {
  const std::string type = GetString("model_type", "");
  if (type.empty()) {
    throw WrongConfig(path_, {"model_type"}, "\"model_type\" is missing",
                      "add it, e.g. \"model_type\": \"bert\"");
  }
  return type;
}

int64_t PretrainedConfig::GetInt(const std::string& key, int64_t default_value, int64_t low,
                                 int64_t high) const {
  const Json* value = Find(json(), key);
  if (value == nullptr) {
    return default_value;
  }
  const std::optional<int64_t> integer = AsInteger(*value);
  if (!integer) {
    throw Wrong(path_, key, "a whole number but is " + DumpJson(*value));
  }
  if (*integer < low || *integer > high) {
    const std::string range = high == INT64_MAX ? "at least " + std::to_string(low)
                              : low == INT64_MIN
                                  ? "at most " + std::to_string(high)
                                  : "from " + std::to_string(low) + " to " + std::to_string(high);
    throw Wrong(path_, key, range + " but is " + std::to_string(*integer));
  }
  return *integer;
}

double PretrainedConfig::GetDouble(const std::string& key, double default_value) const {
  return GetOptionalDouble(key).value_or(default_value);
}

std::optional<double> PretrainedConfig::GetOptionalDouble(const std::string& key) const {
  const Json* value = Find(json(), key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number()) {
    throw Wrong(path_, key, "a number but is " + DumpJson(*value));
  }
  return value->get<double>();
}

std::string PretrainedConfig::GetString(const std::string& key,
                                        const std::string& default_value) const {
  const Json* value = Find(json(), key);
  if (value == nullptr) {
    return default_value;
  }
  if (!value->is_string()) {
    throw Wrong(path_, key, "a text but is " + DumpJson(*value));
  }
  return value->get<std::string>();
}

bool PretrainedConfig::GetBool(const std::string& key, bool default_value) const {
  const Json* value = Find(json(), key);
  if (value == nullptr) {
    return default_value;
  }
  if (!value->is_boolean()) {
    throw Wrong(path_, key, "true or false but is " + DumpJson(*value));
  }
  return value->get<bool>();
}

bool PretrainedConfig::has(const std::string& key) const { return Find(json(), key) != nullptr; }

int64_t PretrainedConfig::num_labels() const {
  if (const Json* id2label = Find(json(), "id2label")) {
    if (!id2label->is_object()) {
      throw Wrong(path_, "id2label", "an object");
    }
    return static_cast<int64_t>(id2label->size());
  }
  return GetInt("num_labels", 2, 1, kMostLabels);
}

std::vector<std::string> PretrainedConfig::label_names() const {
  const int64_t n = num_labels();
  std::vector<std::string> names(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    names[i] = DefaultLabelName(i);
  }
  if (const Json* id2label = Find(json(), "id2label")) {
    for (const auto& [key, name] : id2label->items()) {
      const int64_t id = LabelId(path_, key);
      if (id >= n || !name.is_string()) {
        throw Wrong(path_, "id2label",
                    "an object from 0 ... " + std::to_string(n - 1) + " to names");
      }
      names[id] = name.get<std::string>();
    }
  }
  return names;
}

void PretrainedConfig::SetLabels(const std::vector<std::string>& names) {
  Json id2label = Json::object();
  Json label2id = Json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    id2label[std::to_string(i)] = names[i];
    if (!label2id.emplace(names[i], i).second) {
      throw InvalidArgument("two labels are named \"" + names[i] + "\"");
    }
  }
  json()["id2label"] = std::move(id2label);
  json()["label2id"] = std::move(label2id);
  json().erase("num_labels");  // id2label implies it; two sources could disagree
}

void PretrainedConfig::SetNumLabels(int64_t n) {
  Check(n >= 1 && n <= kMostLabels, "SetNumLabels", "expected 1 to ", kMostLabels,
        " labels but got ", n);
  if (Find(json(), "id2label") != nullptr && num_labels() == n) {
    return;
  }
  std::vector<std::string> names;
  for (int64_t i = 0; i < n; ++i) {
    names.push_back(DefaultLabelName(i));
  }
  SetLabels(names);
}

namespace {

// Erases the other name of a key that a family knows by two names, so that the file's value doesn't
// hide the new one.
void EraseOtherName(Json& json, const std::string& key, const std::vector<std::string>& known) {
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"dim", "hidden_size"},
      {"n_heads", "num_attention_heads"},
      {"n_layers", "num_hidden_layers"}};
  for (const auto& [one, other] : kNames) {
    if (std::ranges::count(known, one) == 0 || std::ranges::count(known, other) == 0) continue;
    if (key == one) json.erase(other);
    if (key == other) json.erase(one);
  }
}

}  // namespace

void PretrainedConfig::Override(const std::string& overrides,
                                const std::vector<std::string>& known_keys) {
  Json changed = json();  // json() stays as it is if there is an error
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(overrides, ',', absl::SkipWhitespace()))) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) {
      throw InvalidArgument("override \"" + std::string(part) + "\": expected key=value");
    }
    const std::string key(absl::StripAsciiWhitespace(part.substr(0, equals)));
    const std::string text(absl::StripAsciiWhitespace(part.substr(equals + 1)));
    if (!changed.contains(key) &&
        std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end()) {
      std::set<std::string> candidates(known_keys.begin(), known_keys.end());
      for (const auto& [known, value] : changed.items()) {
        candidates.insert(known);
      }
      const auto nearest = NearestName(key, {candidates.begin(), candidates.end()});
      throw InvalidArgument(path_ + ": no key \"" + key + "\" to override",
                            nearest ? "did you mean \"" + *nearest + "\"?"
                                    : "name a key of the file or of the model's class");
    }
    changed[key] = ParseAs(key, text, Find(changed, key));
    EraseOtherName(changed, key, known_keys);
  }
  json() = std::move(changed);
}

std::string PretrainedConfig::ToString() const {
  return DumpJson(json(), 2, /*ensure_ascii=*/true) + "\n";
}

void PretrainedConfig::SavePretrained(const std::string& dir) const {
  const std::filesystem::path path(dir);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw FileError(dir, error.value());
  }
  WriteFileAtomically((path / "config.json").string(), ToString());
}

}  // namespace lathe
