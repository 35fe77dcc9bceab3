// manifest.json of a checkpoint. Few changes leave its own digest right. So an input without a
// digest gets the right one, and the rest of the reader sees it, too.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/manifest.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/tests/fuzz/fuzzer.h"

namespace {

using nlohmann::json;

constexpr char kDigestKey[] = "manifest_sha256";

std::string WithDigest(std::string_view input) {
  lathe::CheckJsonNesting(input, "input");
  json value = json::parse(input, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || value.contains(kDigestKey)) return std::string(input);
  value[kDigestKey] = lathe::Sha256(value.dump(-1, ' ', false, json::error_handler_t::replace));
  return value.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  const std::string checkpoint = ScratchFolder() + "/checkpoint-1";
  std::filesystem::create_directory(checkpoint);
  ScratchFile("checkpoint-1/file", "text");
  ScratchFile("checkpoint-1/manifest.json", WithDigest(input));
  CallAll({[&] { OpenCheckpoint(checkpoint); }, [&] { FindNewestCheckpoint(ScratchFolder()); },
           [&] { NextRun(ScratchFolder()); }});
}
