#include "lathe/apps/finetune/found_output.h"

#include <filesystem>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {

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

nlohmann::json EarlierResults(const OutputDir& out, const FinetuneArguments& options) {
  if (options.do_train) return nlohmann::json::object();
  try {
    const auto json = nlohmann::json::parse(ReadFile(out.File("all_results.json")), nullptr, false);
    if (json.is_object()) return json;
  } catch (const Error&) {
    // There are no earlier results.
  }
  return nlohmann::json::object();
}

}  // namespace lathe
