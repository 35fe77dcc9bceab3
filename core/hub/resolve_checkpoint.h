// Turns a model's name into a local folder: the folder of that name, or the snapshot of a model on
// a Hub. The files that are needed are fetched into the snapshot first.
//
//   ResolveCheckpoint("out", {.weights = true}).folder                      // "out"
//   ResolveCheckpoint("google-bert/bert-base-uncased", {.config = true}).folder
//   //
//   "~/.cache/huggingface/hub/models--google-bert--bert-base-uncased/snapshots/86b5e0934494bd15..."
#pragma once

#include <string>
#include <vector>

#include "lathe/core/hub/hub_settings.h"

namespace lathe {

// What the caller will read. Weights are model.safetensors, else pytorch_model.bin, else
// tf_model.h5, each whole or in shards. Columns are data_columns.json, which a model that Lathe
// trained has; it is no error if there is none.
struct CheckpointParts {
  bool config = false, tokenizer = false, columns = false, weights = false;
};

struct ResolvedCheckpoint {
  std::string folder;
  std::string commit;  // of a model on a Hub; "" for a local folder
};

// A folder or a file of that name wins, and is returned as it is. A file can't have weights: if
// they are needed, throws NotFound. Otherwise asks the Hub, and fetches what the parts need and the
// cache lacks. What the cache has is used if the Hub is out of reach or no longer gives the model,
// or if the cache can't be written. Standard error then says so. That may be an earlier commit of
// the branch, if the cache has all parts of that one only. With settings that are offline no
// request is made. Throws NotFound for what is neither a folder nor a model, and the errors of
// HubClient and FetchFile.
ResolvedCheckpoint ResolveCheckpoint(const std::string& name_or_path, const CheckpointParts& parts,
                                     const HubOptions& options = {});
// Does the same for a model's name, even if there is a folder of that name.
ResolvedCheckpoint FetchCheckpoint(const std::string& model, const CheckpointParts& parts,
                                   const HubSettings& settings);

// Fetches all files of a model whose paths match one of the patterns (with *, ? and [...], as
// fnmatch has them; * also matches slashes; "onnx/" means what is below). Throws NotFound if none
// does, or if the server gives no list of files.
ResolvedCheckpoint FetchMatching(const std::string& model, const std::vector<std::string>& patterns,
                                 const HubSettings& settings);

}  // namespace lathe
