#include "lathe/core/checkpoint/manifest.h"

#include <absl/status/status.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;
constexpr char kDigestKey[] = "manifest_sha256";

json ToJson(const CheckpointManifest& manifest) {
  json settings = json::array(), files = json::object();
  for (const auto& [name, value] : manifest.settings) settings.push_back({name, value});
  for (const auto& [name, digest] : manifest.files)
    files[name] = {{"size", digest.size}, {"sha256", digest.sha256}};
  return {{"format", kFormat},
          {"step", manifest.step},
          {"run", manifest.run},
          {"world_size", manifest.world_size},
          {"resumable", manifest.resumable},
          {"about", manifest.about},
          {"settings", std::move(settings)},
          {"files", std::move(files)}};
}

// Returns a whole number from `low` to `high`. Throws DataLoss for another value, and
// json::exception if it is missing.
int64_t NumberOf(const json& value, const char* key, int64_t low, int64_t high) {
  const std::optional<int64_t> number = WholeNumber(value.at(key), low, high);
  if (!number) {
    throw DataLoss("\"" + std::string(key) + "\" must be a whole number from " +
                   std::to_string(low) + " to " + std::to_string(high) + " but is " +
                   DumpJson(value.at(key)));
  }
  return *number;
}

// Throws json::exception if something is missing or has a wrong type, and DataLoss for a number
// that is out of range.
CheckpointManifest FromJson(const json& value) {
  constexpr int64_t kMostSteps = int64_t{1} << 53, kMostProcesses = 1 << 20;
  CheckpointManifest manifest;
  manifest.step = NumberOf(value, "step", 0, kMostSteps);
  manifest.run = NumberOf(value, "run", 0, kMostSteps);
  manifest.world_size = static_cast<int>(NumberOf(value, "world_size", 1, kMostProcesses));
  manifest.resumable = value.at("resumable").get<bool>();
  manifest.about = value.at("about");
  if (!manifest.about.is_object()) throw DataLoss("\"about\" must be an object");
  for (const json& setting : value.at("settings")) {
    manifest.settings.emplace_back(setting.at(0).get<std::string>(),
                                   setting.at(1).get<std::string>());
  }
  for (const auto& [name, digest] : value.at("files").items()) {
    manifest.files[name] = {NumberOf(digest, "size", 0, INT64_MAX),
                            digest.at("sha256").get<std::string>()};
  }
  return manifest;
}

bool IsUtf8(const std::string& text) try {
  static_cast<void>(json(text).dump());
  return true;
} catch (const json::type_error&) {
  return false;
}

// A name in a manifest must not lead out of its folder.
bool StaysInside(const std::string& name) {
  const fs::path path(name);
  if (name.empty() || path.is_absolute()) return false;
  for (const fs::path& part : path) {
    if (part == "..") return false;
  }
  return true;
}

}  // namespace

void WriteManifest(const std::string& dir, CheckpointManifest manifest) {
  manifest.files.clear();
  std::error_code code;
  for (const auto& entry : fs::recursive_directory_iterator(dir, code)) {
    if (entry.is_directory()) {
      SyncFolder(entry.path());
      continue;
    }
    const std::string name = entry.path().lexically_relative(dir);
    const auto refuse = [&](const std::string& what) {
      throw FileError(absl::StatusCode::kInvalidArgument, entry.path(), what,
                      "let the program write another name there");
    };
    // A hook of the program may have written them.
    if (name == kManifestFile) refuse("this name is for the checkpoint's own list of files");
    if (!IsUtf8(name)) refuse("the name of a file in a checkpoint must be UTF-8");
    CheckRegularFile(entry.path());
    SyncFile(entry.path());
    manifest.files[name] = DigestOfFile(entry.path());
  }
  if (code) throw FileError(dir, code.value());
  json value = ToJson(manifest);
  value[kDigestKey] = Sha256(DumpJson(value));
  WriteFileAtomically(dir + "/" + kManifestFile, DumpJson(value, 2) + "\n");
}

CheckpointManifest ReadManifest(const std::string& dir) {
  const std::string path = dir + "/" + kManifestFile;
  const std::string text = ReadRegularFile(path);
  const auto broken = [&](const std::string& what) {
    return FileError(absl::StatusCode::kDataLoss, path, what);
  };
  if (const auto flaw = FindJsonFlaw(text))
    throw FileError(absl::StatusCode::kInvalidArgument, path, flaw->problem, flaw->hint);
  json value = ParseJsonOrDiscard(text);
  if (!value.is_object() || !value.contains(kDigestKey)) throw broken("is cut off or damaged");
  if (const auto format = value.find("format");
      format != value.end() && format->is_number_integer() && *format > kFormat) {
    throw broken("is from a later version of Lathe");
  }
  const json digest = value[kDigestKey];
  value.erase(kDigestKey);
  if (digest != Sha256(DumpJson(value))) throw broken("is damaged: its own digest differs");
  CheckpointManifest manifest;
  try {
    manifest = FromJson(value);
  } catch (const json::exception& e) {
    throw broken(WithoutTag(e.what()));
  } catch (const Error& e) {
    throw broken(e.message());
  }
  for (const auto& [name, file] : manifest.files) {
    if (!StaysInside(name)) throw broken("names a file outside of the checkpoint");
  }
  return manifest;
}

void VerifyFiles(const std::string& dir, const CheckpointManifest& manifest) {
  for (const auto& [name, digest] : manifest.files) {
    const std::string path = dir + "/" + name;
    CheckRegularFile(path);
    std::error_code code;
    const auto size = fs::file_size(path, code);
    if (code) throw FileError(path, code.value());
    if (static_cast<int64_t>(size) != digest.size) {
      throw FileError(absl::StatusCode::kDataLoss, path,
                      "has " + std::to_string(size) + " bytes, but its manifest says " +
                          std::to_string(digest.size));
    }
  }
  for (const auto& [name, digest] : manifest.files) {
    const std::string path = dir + "/" + name;
    if (DigestOfFile(path).sha256 != digest.sha256)
      throw FileError(absl::StatusCode::kDataLoss, path,
                      "is damaged: its SHA-256 is not that of the manifest");
  }
}

}  // namespace lathe
