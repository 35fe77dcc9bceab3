// The folder that a run writes to: refused early if it can't be used, and never left half written.
//
//   OutputDir out("model", /*allow_existing=*/false);     // before any work
//   out.Replace([&](const std::string& dir) { model.SavePretrained(dir);
//   tokenizer.SavePretrained(dir); }); out.WriteJson("train_results.json", results);
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace lathe {

class OutputDir {
 public:
  // Makes the folder if need be and checks that files can be written to it. Throws if it is
  // something else than a folder, if it can't be written, or if it holds anything and
  // `allow_existing` is false.
  OutputDir(std::string path, bool allow_existing);
  // Takes the folders that it made away again if nothing was written.
  ~OutputDir();
  OutputDir(const OutputDir&) = delete;
  OutputDir& operator=(const OutputDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

  // Lets `write` fill an empty folder with synced files, which then take the place of those of the
  // same name and of an earlier model's (its tokenizer, weights and results, by their usual names);
  // others stay. If anything fails (a full disk, say), everything here stays as it was.
  // After a crash the folder holds the old model, the new one, or none that loads: config.json
  // leaves first and arrives last, and what is not in place then lies in `.partial.PID/old` and
  // `.partial.PID/new`.
  void Replace(const std::function<void(const std::string& dir)>& write);

  // One file, whole or not at all; JSON as Trainer writes it.
  void Write(const std::string& name, const std::string& contents);
  void WriteJson(const std::string& name, const nlohmann::json& json, int indent = 4);

 private:
  std::string path_;
  std::filesystem::path
      first_made_;  // the outermost folder that did not exist before; may be empty
};

}  // namespace lathe
