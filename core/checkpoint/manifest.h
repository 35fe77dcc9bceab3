// The manifest of a checkpoint: the file manifest.json in its folder. It is written last, and names
// every other file with its size and SHA-256. So a checkpoint without a manifest is incomplete, and
// damage shows before anything else is read.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/sha256.h"

namespace lathe {

inline constexpr char kManifestFile[] = "manifest.json";

struct CheckpointManifest {
  int64_t step = 0;
  // The trainings that write to one folder count up; a resumed one keeps its number. So a
  // checkpoint with a high step that an older training left is not the newest.
  int64_t run = 1;
  int world_size = 1;
  // False: the checkpoint holds the model alone, and no training can go on from it.
  bool resumable = true;
  // What decides on the numbers of the training, as names and values (the same type as
  // NamedSettings of nn/module.h).
  std::vector<std::pair<std::string, std::string>> settings = {};
  // For people: the version of Lathe, the seed and so on.
  nlohmann::json about = nlohmann::json::object();
  std::map<std::string, FileDigest> files = {};  // by name, relative to the folder
};

// Writes the manifest of the folder `dir` durably. Fills in `files` first: it syncs and reads every
// file in the folder. Throws FileError.
void WriteManifest(const std::string& dir, CheckpointManifest manifest);

// Throws NotFound if there is no manifest, and DataLoss if it is damaged or from a later version.
CheckpointManifest ReadManifest(const std::string& dir);

// Compares the folder's files with the manifest: first all sizes, then all digests. Throws NotFound
// or DataLoss for the first difference.
void VerifyFiles(const std::string& dir, const CheckpointManifest& manifest);

}  // namespace lathe
