#include "lathe/apps/cli/hub_flags.h"

namespace lathe {

void AddHubFlags(FlagTable& flags, std::string* revision, std::string* token,
                 std::string* cache_dir, const char* revision_flag) {
  flags.Add(revision_flag, revision, "branch, tag or commit of a model on the Hub")
      .ValueName("NAME");
  flags
      .Add("token", token,
           "token for private and gated models (default: HF_TOKEN, or the file that `hf auth "
           "login` writes); other users of the machine see options, but no variables")
      .ValueName("TOKEN");
  flags
      .Add("cache_dir", cache_dir,
           "folder of the models that were fetched (default: HF_HUB_CACHE, or "
           "~/.cache/huggingface/hub)")
      .ValueName("DIR");
}

void AddHubFlags(FlagTable& flags, HubOptions* options, const char* revision_flag) {
  AddHubFlags(flags, &options->revision, &options->token, &options->cache_dir, revision_flag);
}

}  // namespace lathe
