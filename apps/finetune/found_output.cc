#include "lathe/apps/finetune/found_output.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {

void CheckHidesNoModel(const FinetuneArguments& options) {
  std::error_code code;
  const auto plain = [](const std::string& path) {
    return (std::filesystem::path(path) / "").lexically_normal();
  };
  for (const std::string& name :
       {options.model_name_or_path, options.config_name, options.tokenizer_name}) {
    if (!IsModelName(name) || plain(name) != plain(options.output_dir) ||
        std::filesystem::exists(name, code))
      continue;
    throw UsageError(options.output_dir +
                         ": --output_dir is also the name of a model on the Hub, "
                         "and the new folder would go before that",
                     "choose another --output_dir");
  }
}

void CheckNoOtherModel(const OutputDir& out, const FinetuneArguments& options) {
  std::error_code code;
  if (options.do_train || options.overwrite_output_dir ||
      !std::filesystem::exists(out.File("config.json"), code) ||
      std::filesystem::equivalent(out.path(), options.model_name_or_path, code)) {
    return;
  }
  throw InvalidArgument(out.path() + ": --output_dir holds another model than the one to evaluate",
                        "choose another folder or pass --overwrite_output_dir");
}

std::vector<std::string> NotesOfCutSaves(const OutputDir& out) {
  std::vector<std::string> notes;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(out.path(), code)) {
    const auto has_files = [&](const char* part) {
      return std::filesystem::directory_iterator(entry.path() / part, code) !=
             std::filesystem::directory_iterator();
    };
    if (!entry.path().filename().string().starts_with(".partial.")) continue;
    if (has_files("old") || has_files("new")) {
      notes.push_back(entry.path().string() +
                      " has files of a model that was being saved when the program was killed: "
                      "those of the model before in old, the new ones in new");
    }
  }
  return notes;
}

nlohmann::json ReadResults(const std::string& file) try {
  const std::string text = ReadRegularFile(file);
  CheckJsonNesting(text, file);
  auto json = ParseJsonOrDiscard(text);
  return json.is_object() ? std::move(json) : nlohmann::json::object();
} catch (const Error&) {
  return nlohmann::json::object();
}

nlohmann::json EarlierResults(const OutputDir& out, const FinetuneArguments& options) {
  return options.do_train ? nlohmann::json::object() : ReadResults(out.File("all_results.json"));
}

}  // namespace lathe
