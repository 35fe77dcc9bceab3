// What `finetune` finds in its output folder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Throws if the output folder is not there yet and has the name by which the options mean a model
// on the Hub. Call it before the folder is made, because a folder of that name goes before the Hub.
void CheckHidesNoModel(const FinetuneArguments& options);

// Throws if the folder holds another model: results that lie beside a model are taken for its own.
void CheckNoOtherModel(const OutputDir& out, const FinetuneArguments& options);

// Returns a note for each folder with files of a model, old or new, that a program was replacing
// when it was killed.
std::vector<std::string> NotesOfCutSaves(const OutputDir& out);

// Returns the results in a file such as all_results.json. The object is empty if there is no such
// file, or no JSON object in it that can be read.
nlohmann::json ReadResults(const std::string& file);

// Returns the results of earlier runs, which stay as with Trainer. After training there are none,
// because the model is a new one.
nlohmann::json EarlierResults(const OutputDir& out, const FinetuneArguments& options);

}  // namespace lathe
