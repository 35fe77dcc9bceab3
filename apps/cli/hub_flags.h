// The options of every program that reads a model, for names of models on a Hub.
#pragma once

#include <string>

#include "lathe/apps/cli/flags.h"
#include "lathe/core/hub/hub_settings.h"

namespace lathe {

// Adds --model_revision (or `revision_flag`), --token and --cache_dir.
void AddHubFlags(FlagTable& flags, std::string* revision, std::string* token,
                 std::string* cache_dir, const char* revision_flag = "model_revision");
void AddHubFlags(FlagTable& flags, HubOptions* options,
                 const char* revision_flag = "model_revision");

}  // namespace lathe
