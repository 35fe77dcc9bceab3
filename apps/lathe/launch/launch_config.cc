#include "lathe/apps/lathe/launch/launch_config.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <vector>

#include "lathe/apps/cli/yaml_file.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/nearest_name.h"
#include "lathe/core/hub/hub_settings.h"
#include "lathe/distributed/launch/launch.h"

namespace lathe {
namespace {

constexpr char kHint[] =
    "`lathe config --config_file FILE` writes a valid file; pass --config_file FILE to use it";

// A key's value and its place in the file.
class Value {
 public:
  Value(const std::string& path, std::string key, YAML::Node node)
      : path_(path), key_(std::move(key)), node_(std::move(node)) {}

  int64_t Int(int64_t low, int64_t high) const {
    const std::string text = Scalar("a whole number");
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, value);
    if (code != std::errc{} || stop != end) throw Bad("a whole number");
    if (value < low || value > high) {
      throw Bad("from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  }
  bool Bool() const {
    const std::string text = absl::AsciiStrToLower(Scalar("true or false"));
    for (const char* yes : {"true", "yes", "on"}) {
      if (text == yes) return true;
    }
    for (const char* no : {"false", "no", "off"}) {
      if (text == no) return false;
    }
    throw Bad("true or false");
  }
  std::string Text() const { return Scalar("text"); }
  // Returns the value if it is one of `names`, else throws. For a value in `refused` the error says
  // that Lathe does not support it, for any other one that it is wrong.
  std::string Choice(std::initializer_list<std::string> names,
                     std::initializer_list<std::string> refused) const {
    const std::string text = Text();
    if (std::find(names.begin(), names.end(), text) != names.end()) return text;
    if (std::find(refused.begin(), refused.end(), text) != refused.end()) throw Refused();
    std::string wanted;
    for (const std::string& name : names) wanted += (wanted.empty() ? "" : ", ") + name;
    throw Bad("one of " + wanted);
  }
  // Returns the value as YAML on one line.
  // Throws if it has so many parts that it can't be meant: with aliases a few lines make billions,
  // or a value that contains itself.
  std::string InYaml() const {
    int parts = 0;
    return Render(node_, parts);
  }
  const std::string& key() const { return key_; }
  bool IsEmpty() const { return node_.IsNull() || (!node_.IsScalar() && node_.size() == 0); }

  Error Refused() const {
    const std::string value = node_.IsScalar() ? " " + node_.Scalar() : "";
    return InvalidArgument(Where() + key_ + value + ": Lathe does not support this", kHint);
  }
  Error Bad(const std::string& wanted) const {
    const std::string shown = node_.IsScalar()     ? "\"" + node_.Scalar() + "\""
                              : node_.IsSequence() ? "a list"
                              : node_.IsMap()      ? "a map"
                                                   : "empty";
    return InvalidArgument(Where() + key_ + " must be " + wanted + " but is " + shown, kHint);
  }

 private:
  std::string Render(const YAML::Node& node, int& parts) const {
    constexpr int kMostParts = 1000;  // each a call
    if (++parts > kMostParts) {
      throw InvalidArgument(Where() + key_ + " has more than " + std::to_string(kMostParts) +
                                " parts, or contains itself by an alias",
                            kHint);
    }
    if (node.IsNull()) return "null";
    if (node.IsScalar()) {
      const std::string& text = node.Scalar();
      const bool quoted = node.Tag() == "!";
      if (!quoted && text.find_first_of(",[]{}#&*!|>%@`:'\"\\\n") == std::string::npos) return text;
      YAML::Emitter out;
      out << YAML::DoubleQuoted << text;
      return out.c_str();
    }
    std::string inside;
    for (const auto& item : node) {
      if (!inside.empty()) inside += ", ";
      inside += node.IsMap() ? Render(item.first, parts) + ": " + Render(item.second, parts)
                             : Render(item, parts);
    }
    return node.IsMap() ? "{" + inside + "}" : "[" + inside + "]";
  }
  std::string Where() const { return path_ + ":" + std::to_string(node_.Mark().line + 1) + ": "; }
  std::string Scalar(const char* wanted) const {
    if (!node_.IsScalar()) throw Bad(wanted);
    return node_.Scalar();
  }

  const std::string& path_;
  std::string key_;
  YAML::Node node_;
};

// The function that reads a key's value, for each key. Values that are null are skipped.
using Keys = std::map<std::string, std::function<void(const Value&)>>;

// Adds the keys that only Accelerate uses. Their values are kept or, where Lathe can't do what they
// ask for, refused.
void AddKeysOfAccelerate(LaunchConfig& config, Keys& keys) {
  const auto keep = [&config](const Value& v) { config.others[v.key()] = v.InYaml(); };
  keys["compute_environment"] = [](const Value& v) {
    v.Choice({"LOCAL_MACHINE"}, {"AMAZON_SAGEMAKER"});
  };
  keys["rdzv_backend"] = [keep](const Value& v) {
    v.Choice({"static", "c10d"}, {"etcd", "etcd-v2"});
    keep(v);
  };
  keys["tpu_use_cluster"] = [](const Value& v) {
    if (v.Bool()) throw v.Refused();
  };
  for (const char* key : {"enable_cpu_affinity", "same_network"}) {
    keys[key] = [keep](const Value& v) {
      v.Bool();
      keep(v);
    };
  }
  // Keys for TPUs and Python, and keys that only make programs faster.
  for (const char* key : {"main_training_function", "downcast_bf16", "tpu_name", "tpu_zone",
                          "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env",
                          "dynamo_config", "dynamo_backend", "ipex_config", "use_xpu"}) {
    keys[key] = keep;
  }
  for (const char* key : {"fp8_config", "deepspeed_config", "fsdp_config", "parallelism_config",
                          "megatron_lm_config", "mpirun_config"}) {
    keys[key] = [](const Value& v) {
      if (!v.IsEmpty()) throw v.Refused();
    };
  }
}

// Returns all keys. Their functions put the values into `config`.
Keys KeysOf(LaunchConfig& config) {
  Keys keys = {
      {"distributed_type",
       [&](const Value& v) {
         config.distributed_type =
             v.Choice({"NO", "MULTI_CPU", "MULTI_GPU"},
                      {"FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA", "TPU", "MULTI_XPU", "MULTI_NPU",
                       "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU", "MULTI_NEURON"});
       }},
      {"mixed_precision",
       [&](const Value& v) {
         config.mixed_precision = v.Choice({"no", "bf16", "fp16"}, {"fp8"});
       }},
      // Early versions of Accelerate wrote fp16; mixed_precision overrides it.
      {"fp16",
       [&](const Value& v) {
         if (v.Bool() && !config.mixed_precision) config.mixed_precision = "fp16";
       }},
      {"use_cpu", [&](const Value& v) { config.use_cpu = v.Bool(); }},
      {"debug", [&](const Value& v) { config.debug = v.Bool(); }},
      {"num_processes",
       [&](const Value& v) {
         constexpr int64_t kNotSaid = -1;
         const int64_t number = v.Int(kNotSaid, kMostProcesses);
         if (number == 0) throw v.Bad("at least 1");
         if (number != kNotSaid) config.num_processes = number;
       }},
      {"num_machines", [&](const Value& v) { config.num_machines = v.Int(1, kMostProcesses); }},
      {"machine_rank", [&](const Value& v) { config.machine_rank = v.Int(0, kMostProcesses); }},
      {"main_process_ip", [&](const Value& v) { config.main_process_ip = v.Text(); }},
      {"main_process_port",
       [&](const Value& v) { config.main_process_port = v.Int(0, kLargestPort); }},
      {"gpu_ids",
       [&](const Value& v) {
         config.gpu_ids = v.Text();
         if (!IsGpuList(config.gpu_ids)) throw v.Bad("all or a list such as 0,1");
       }},
  };
  AddKeysOfAccelerate(config, keys);
  return keys;
}

}  // namespace

bool IsGpuList(const std::string& text) {
  if (text == "all") return true;
  bool digit = false;  // whether the character before is a digit
  for (const char c : text) {
    if (c == ',' ? !digit : std::isdigit(static_cast<unsigned char>(c)) == 0) return false;
    digit = c != ',';
  }
  return digit;
}

std::string DefaultConfigPath() { return HuggingFaceHome() + "/accelerate/default_config.yaml"; }

LaunchConfig ReadLaunchConfig(const std::string& path) {
  const YAML::Node root = ReadYamlFile(path, kHint);
  if (!root.IsMap()) {
    throw InvalidArgument(path + ": must have lines such as `num_processes: 2`", kHint);
  }
  LaunchConfig config;
  const Keys keys = KeysOf(config);
  std::vector<std::string> names;
  for (const auto& [name, unused] : keys) names.push_back(name);
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const std::string where = path + ":" + std::to_string(entry.first.Mark().line + 1) + ": ";
    const auto found = keys.find(key);
    if (found == keys.end()) {
      const auto nearest = NearestName(key, names);
      throw InvalidArgument(where + "unknown key \"" + key + "\"",
                            nearest ? "did you mean " + *nearest + "?" : kHint);
    }
    if (!seen.insert(key).second) throw InvalidArgument(where + key + " appears twice", kHint);
    if (!entry.second.IsNull()) found->second(Value(path, key, entry.second));
  }
  if (!seen.contains("distributed_type")) {
    throw InvalidArgument(path + ": distributed_type is missing", kHint);
  }
  if (config.distributed_type == "NO" && config.num_processes.value_or(1) > 1) {
    throw InvalidArgument(path + ": num_processes is " + std::to_string(*config.num_processes) +
                              " but distributed_type is NO",
                          "several processes need distributed_type MULTI_CPU or MULTI_GPU");
  }
  return config;
}

std::string FormatLaunchConfig(const LaunchConfig& config) {
  YAML::Emitter out;
  const auto name = [&](const char* key) { out << YAML::Key << key << YAML::Value; };
  // Quoted, because Python would read an unquoted `no` as false.
  const auto text = [&](const char* key, const std::string& value) {
    name(key);
    out << YAML::SingleQuoted << value;
  };
  const auto number = [&](const char* key, int64_t value) {
    name(key);
    out << value;
  };
  const auto boolean = [&](const char* key, bool value) {
    name(key);
    out << value;
  };
  // Adds the keys that Accelerate always writes, with their usual values, unless the file had them.
  std::map<std::string, std::string> others = config.others;
  others.insert({{"downcast_bf16", "\"no\""},
                 {"enable_cpu_affinity", "false"},
                 {"main_training_function", "main"},
                 {"rdzv_backend", "static"},
                 {"same_network", "true"}});
  out << YAML::BeginMap;
  text("compute_environment", "LOCAL_MACHINE");
  boolean("debug", config.debug);
  text("distributed_type", config.distributed_type);
  if (config.distributed_type == "MULTI_GPU" || config.gpu_ids != "all") {
    text("gpu_ids", config.gpu_ids);
  }
  number("machine_rank", config.machine_rank);
  if (config.main_process_ip) text("main_process_ip", *config.main_process_ip);
  if (config.main_process_port) number("main_process_port", *config.main_process_port);
  text("mixed_precision", config.mixed_precision.value_or("no"));
  number("num_machines", config.num_machines);
  number("num_processes", config.num_processes.value_or(1));
  boolean("use_cpu", config.use_cpu);
  out << YAML::EndMap;
  std::string file = std::string(out.c_str()) + '\n';
  for (const auto& [key, value] : others) file += key + ": " + value + '\n';
  return file;
}

}  // namespace lathe
