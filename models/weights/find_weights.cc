#include "lathe/models/weights/find_weights.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/keras_files/keras_file.h"
#include "lathe/core/pytorch_files/pytorch_file.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/core/weight_files/git_lfs.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

struct WeightFile {
  const char* name;
  StoredArrays (*read)(const std::string& path);
};

StoredArrays ReadSafetensorsFolder(const std::string& path) {
  return SafetensorsReader::FromDirectory(fs::path(path).parent_path()).arrays();
}

constexpr WeightFile kFiles[] = {{"model.safetensors", ReadSafetensorsFolder},
                                 {"model.safetensors.index.json", ReadSafetensorsFolder},
                                 {"pytorch_model.bin", ReadPyTorchFile},
                                 {"pytorch_model.bin.index.json", ReadPyTorchShards},
                                 {"tf_model.h5", ReadKerasFile},
                                 {"tf_model.h5.index.json", ReadKerasShards}};

// Returns a few names of what the folder holds.
std::string Contents(const std::string& dir) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(dir, code)) {
    names.push_back(entry.path().filename());
  }
  if (code) return dir + ": " + code.message();
  if (names.empty()) return "the folder is empty";
  std::sort(names.begin(), names.end());
  std::string out = "the folder holds ";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    out += (i > 0 ? ", " : "") + names[i];
  }
  return out + (names.size() > kShown ? ", ..." : "");
}

}  // namespace

StoredArrays FindWeights(const std::string& dir) {
  std::string broken_link;
  for (const WeightFile& file : kFiles) {
    const fs::path path = fs::path(dir) / file.name;
    std::error_code code;
    if (fs::exists(path, code)) {
      CheckIsNoLfsPointer(path);
      return file.read(path);
    }
    if (broken_link.empty() && fs::is_symlink(path, code)) broken_link = path;
  }
  if (!broken_link.empty()) {
    std::error_code code;
    throw NotFound(broken_link + ": is a link to " + fs::read_symlink(broken_link, code).string() +
                       ", which is not there",
                   "if the Hub's cache lost it, lathe download fetches it again");
  }
  throw NotFound(dir +
                     ": has no weights (model.safetensors, pytorch_model.bin or tf_model.h5, whole "
                     "or by an index)",
                 Contents(dir) + "; name one that save_pretrained wrote");
}

}  // namespace lathe
