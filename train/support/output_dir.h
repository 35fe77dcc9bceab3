// The folder that a run writes to. It is refused early if it can't be used, and it is never left
// half written.
//
//   OutputDir out("model", /*allow_existing=*/false);     // before any work
//   out.Replace([&](const std::string& dir) {
//     model.SavePretrained(dir);
//     tokenizer.SavePretrained(dir);
//   });
//   out.WriteJson("train_results.json", results);
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lathe {

// A hidden file by which a job knows its own folder after a restart (train/checkpoint/job_mark.h).
inline constexpr char kJobMark[] = ".lathe_job.json";
// A hidden file that a training locks while it may write (train/checkpoint/folder_claim.h).
inline constexpr char kFolderLock[] = ".lathe_lock";

class OutputDir {
 public:
  // Makes the folder if it doesn't exist and checks that files can be written to it. Throws if it
  // is no folder or can't be written to. Throws UsageError if it holds anything but kJobMark and
  // kFolderLock, and `allow_existing` is false.
  OutputDir(std::string path, bool allow_existing);
  // Removes the folders that the constructor made if nothing was written.
  ~OutputDir();
  OutputDir(const OutputDir&) = delete;
  OutputDir& operator=(const OutputDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

  // Replaces the model in the folder. `write` fills an empty folder with synced files, which then
  // replace files of the same name. They also replace those of an earlier model: its tokenizer,
  // weights and results, by their usual names, and its card unless it was edited. Other files stay.
  // If anything fails (a full disk, say), everything here stays as it was. After a crash the folder
  // holds the old model, the new one, or none that loads: config.json leaves first and arrives
  // last. Files that are not in place then lie in `old` and `new` of a folder
  // `.partial.PID`, which no later program removes.
  void Replace(const std::function<void(const std::string& dir)>& write);

  // Writes one file, whole or not at all; JSON is written as Trainer writes it.
  void Write(const std::string& name, const std::string& contents);
  void WriteJson(const std::string& name, const nlohmann::json& json, int indent = 4);

 private:
  std::string path_;
  // The outermost folder that the constructor made; empty if it made none.
  std::filesystem::path outermost_made_;
};

}  // namespace lathe
