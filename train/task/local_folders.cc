#include "lathe/train/task/local_folders.h"

#include <absl/status/status.h>

#include <array>
#include <filesystem>
#include <string>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/core/hub/resolve_checkpoint.h"

namespace lathe {
namespace {

// One of the options that name a model.
struct NamedModel {
  const char* option;
  std::string FinetuneArguments::*name;
  CheckpointParts parts;  // what is read of it
};

std::array<NamedModel, 3> NamedModels(const FinetuneArguments& options) {
  const bool model = !options.model_name_or_path.empty();
  const bool own_config = options.config_name.empty(),
             own_tokenizer = options.tokenizer_name.empty();
  return {NamedModel{"model_name_or_path",
                     &FinetuneArguments::model_name_or_path,
                     {.config = own_config,
                      .tokenizer = own_tokenizer,
                      .columns = !options.do_train,
                      .weights = true}},
          NamedModel{"config_name",
                     &FinetuneArguments::config_name,
                     {.config = true, .tokenizer = own_tokenizer && !model}},
          NamedModel{"tokenizer_name", &FinetuneArguments::tokenizer_name, {.tokenizer = true}}};
}

void CheckFolder(const std::string& name, const char* option) {
  std::error_code code;
  if (name.empty() || IsModelName(name) || std::filesystem::exists(name, code)) return;
  throw NotFound(name + ": no such folder (" + OptionName(option) + ")",
                 "give a folder's path, or the name of a model on the Hub as owner/name");
}

}  // namespace

LocalModels WithLocalFolders(const FinetuneArguments& options, Accelerator& accelerator) {
  LocalModels local{.options = options, .hub_commits = {}};
  for (const NamedModel& named : NamedModels(options))
    CheckFolder(options.*named.name, named.option);
  HubOptions hub = {
      .revision = options.model_revision, .token = options.token, .cache_dir = options.cache_dir};
  hub.show_progress = accelerator.is_local_main_process();
  hub.show_bars = !options.disable_tqdm;
  for (const NamedModel& named : NamedModels(options)) {
    const std::string& name = options.*named.name;
    // The ranks decide by the name alone whether they talk, because their folders may differ.
    if (!IsModelName(name)) continue;
    const std::string key = std::string("commit of ") + named.option;
    HubOptions own = hub;
    if (!accelerator.is_main_process()) {
      const std::string commit = accelerator.group().AwaitMessage(key, 0);
      if (!commit.empty()) own.revision = commit;
    }
    const ResolvedCheckpoint resolved = ResolveCheckpoint(name, named.parts, own);
    local.options.*named.name = resolved.folder;
    if (!resolved.commit.empty()) local.hub_commits[name] = resolved.commit;
    if (accelerator.is_main_process() && accelerator.use_distributed()) {
      accelerator.group().PostMessage(key, resolved.commit);
    }
  }
  return local;
}

}  // namespace lathe
