#include "lathe/core/checkpoint/manifest.h"

#include <filesystem>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/json_nesting.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;
constexpr char kDigestKey[] = "manifest_sha256";

std::string Dump(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

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

// Throws json::exception if something is missing or has a wrong type.
CheckpointManifest FromJson(const json& value) {
  CheckpointManifest manifest;
  manifest.step = value.at("step").get<int64_t>();
  manifest.run = value.at("run").get<int64_t>();
  manifest.world_size = value.at("world_size").get<int>();
  manifest.resumable = value.at("resumable").get<bool>();
  manifest.about = value.at("about");
  for (const json& setting : value.at("settings")) {
    manifest.settings.emplace_back(setting.at(0).get<std::string>(),
                                   setting.at(1).get<std::string>());
  }
  for (const auto& [name, digest] : value.at("files").items()) {
    manifest.files[name] = {digest.at("size").get<int64_t>(),
                            digest.at("sha256").get<std::string>()};
  }
  return manifest;
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
    const std::string name = fs::relative(entry.path(), dir);
    SyncFile(entry.path());
    manifest.files[name] = DigestOfFile(entry.path());
  }
  if (code) throw FileError(dir, code.value());
  json value = ToJson(manifest);
  value[kDigestKey] = Sha256(Dump(value));
  WriteFileAtomically(dir + "/" + kManifestFile, Dump(value, 2) + "\n");
}

CheckpointManifest ReadManifest(const std::string& dir) {
  const std::string path = dir + "/" + kManifestFile;
  const std::string text = ReadFile(path);
  const auto broken = [&](const std::string& what) { return DataLoss(path + ": " + what); };
  CheckJsonNesting(text, path);
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains(kDigestKey)) throw broken("is cut off or damaged");
  if (const auto format = value.find("format");
      format != value.end() && format->is_number_integer() && *format > kFormat) {
    throw broken("is from a later version of Lathe");
  }
  const json digest = value[kDigestKey];
  value.erase(kDigestKey);
  if (digest != Sha256(Dump(value))) throw broken("is damaged: its own digest differs");
  try {
    CheckpointManifest manifest = FromJson(value);
    for (const auto& [name, file] : manifest.files) {
      if (!StaysInside(name)) throw broken("names a file outside of the checkpoint");
    }
    return manifest;
  } catch (const json::exception& e) {
    throw broken(WithoutTag(e.what()));
  }
}

void VerifyFiles(const std::string& dir, const CheckpointManifest& manifest) {
  for (const auto& [name, digest] : manifest.files) {
    const std::string path = dir + "/" + name;
    std::error_code code;
    const auto size = fs::file_size(path, code);
    if (code) throw FileError(path, code.value());
    if (static_cast<int64_t>(size) != digest.size) {
      throw DataLoss(path + ": has " + std::to_string(size) + " bytes, but its manifest says " +
                     std::to_string(digest.size));
    }
  }
  for (const auto& [name, digest] : manifest.files) {
    const std::string path = dir + "/" + name;
    if (DigestOfFile(path).sha256 != digest.sha256)
      throw DataLoss(path + ": is damaged: its SHA-256 is not that of the manifest");
  }
}

}  // namespace lathe
