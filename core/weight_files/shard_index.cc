#include "lathe/core/weight_files/shard_index.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lathe/core/files/regular_file.h"
#include "lathe/core/files/safe_path.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/weight_files/git_lfs.h"

namespace lathe {
namespace {

void CheckShardName(const std::string& shard, const std::string& index, const std::string& ending) {
  if (IsSafePath(shard) && shard.ends_with(ending)) return;
  throw BrokenWeights(index, "\"" + shard + "\" must be the name of a " + ending +
                                 " file beside it or in a folder there");
}

}  // namespace

std::map<std::string, std::string> ReadShardIndex(const std::string& index,
                                                  const std::string& ending) {
  nlohmann::json parsed;
  const std::string text = ReadRegularFile(index);
  CheckJsonNesting(text, index);
  try {
    parsed = ParseJson(text);
  } catch (const nlohmann::json::exception& e) {
    throw BrokenWeights(index, std::string("is not JSON: ") + WithoutTag(e.what()));
  }
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object()) {
    throw BrokenWeights(index, "\"weight_map\" must be an object");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, value] : parsed["weight_map"].items()) {
    if (!value.is_string()) {
      throw BrokenWeights(index,
                          "\"weight_map\": the value of \"" + name + "\" must be a file name");
    }
    shard_of[name] = value.get<std::string>();
    CheckShardName(shard_of[name], index, ending);
  }
  return shard_of;
}

std::string ShardPath(const std::string& index, const std::string& shard) {
  return (std::filesystem::path(index).parent_path() / shard).string();
}

void CheckShardIsThere(const std::string& index, const std::string& file) {
  if (!std::filesystem::exists(file)) {
    throw NotFound(file + ": the file is missing, though " + index + " lists it",
                   "download or copy all shards of the checkpoint");
  }
  CheckIsNoLfsPointer(file);
}

}  // namespace lathe
