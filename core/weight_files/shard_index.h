// The index of weights that were saved in shards: a JSON file such as
// model.safetensors.index.json, which says in which file each tensor lies.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lathe/core/weight_files/stored_array.h"

namespace lathe {

// Returns the shard of each tensor, by the tensor's name. A shard is a path that IsSafePath takes,
// relative to the index's folder, and ends with `ending`, such as ".safetensors". Throws
// BrokenWeights for an index that says otherwise.
std::map<std::string, std::string> ReadShardIndex(const std::string& index,
                                                  const std::string& ending);

// Opens each shard of the index once, by `open`, which returns the file's tensors by name. Returns
// all tensors. If several shards have a tensor, it returns the one that the index names. Throws
// NotFound for a shard that is missing, InvalidArgument for a pointer of Git LFS, and BrokenWeights
// for a tensor that is missing or comes twice.
template <typename Entry>
std::map<std::string, Entry> ReadShards(
    const std::string& index, const std::string& ending,
    const std::function<std::map<std::string, Entry>(const std::string& file)>& open);

// --- of ReadShards ---

std::string ShardPath(const std::string& index, const std::string& shard);
// Throws NotFound if the shard isn't there, InvalidArgument if it is only a pointer of Git LFS.
void CheckShardIsThere(const std::string& index, const std::string& file);

template <typename Entry>
std::map<std::string, Entry> ReadShards(
    const std::string& index, const std::string& ending,
    const std::function<std::map<std::string, Entry>(const std::string& file)>& open) {
  const std::map<std::string, std::string> shard_of = ReadShardIndex(index, ending);
  std::map<std::string, Entry> entries;
  std::map<std::string, std::string> files;  // of the shards
  for (const auto& [name, shard] : shard_of) files.emplace(shard, ShardPath(index, shard));
  for (const auto& [shard, file] : files) {
    CheckShardIsThere(index, file);
    for (auto& [name, entry] : open(file)) {
      const auto listed = shard_of.find(name);
      if (listed != shard_of.end() && listed->second != shard) continue;
      const auto [at, is_new] = entries.emplace(name, entry);
      if (!is_new) {
        throw BrokenWeights(file, "tensor \"" + name + "\": is also in " + at->second.file);
      }
    }
  }
  for (const auto& [name, shard] : shard_of) {
    if (entries.count(name) == 0) {
      throw BrokenWeights(files.at(shard), "tensor \"" + name + "\": the file lacks it, though " +
                                               index + " lists it");
    }
  }
  return entries;
}

}  // namespace lathe
