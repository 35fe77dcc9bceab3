#include "lathe/core/checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Doesn't sync, which would take long.
void Overwrite(const std::string& path, const std::string& text) {
  FileWriter file(path, path);
  file.Write(text.data(), text.size());
  file.Close();
}

class CheckpointFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "checkpoint_folder_test";
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~CheckpointFolderTest() override { fs::remove_all(root_); }

  void Save(int64_t step, int64_t run = 1, const std::string& text = "weights") const {
    CheckpointDraft draft(root_, CheckpointName(step));
    WriteFileAtomically(draft.path() + "/model", text);
    WriteFileAtomically(draft.path() + "/state.json", "{}");
    draft.Commit({.step = step, .run = run, .settings = {{"seed", "42"}, {"rate", "0.1"}}});
  }
  std::string Path(int64_t step) const { return root_ + "/" + CheckpointName(step); }
  std::string Newest(const std::function<bool(const CheckpointManifest&)>& wanted = nullptr) const {
    const CheckpointSearch search = FindNewestCheckpoint(root_, wanted);
    return search.newest ? fs::path(search.newest->path).filename().string() : "none";
  }
  int CountEntries() const {
    return static_cast<int>(std::distance(fs::directory_iterator(root_), {}));
  }

  std::string root_;
};

TEST_F(CheckpointFolderTest, IsThereAsAWhole) {
  Save(6);
  EXPECT_EQ(CountEntries(), 1);
  const FoundCheckpoint found = OpenCheckpoint(Path(6));
  EXPECT_EQ(found.manifest.step, 6);
  EXPECT_EQ(found.manifest.files.size(), 2u);
  EXPECT_EQ(found.manifest.files.at("model").size, 7);
  // The digest of FIPS 180-4 as sha256sum prints it.
  EXPECT_EQ(found.manifest.files.at("state.json").sha256,
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
  EXPECT_EQ(found.manifest.settings[1].second, "0.1");
}

TEST_F(CheckpointFolderTest, ADraftThatIsNotCommittedVanishes) {
  {
    CheckpointDraft draft(root_, CheckpointName(3));
    WriteFileAtomically(draft.path() + "/model", "weights");
    EXPECT_EQ(Newest(), "none");
  }
  EXPECT_EQ(CountEntries(), 0);
}

TEST_F(CheckpointFolderTest, ReplacesOneOfTheSameName) {
  Save(3, 1, "old");
  Save(3, 1, "new");
  EXPECT_EQ(ReadFile(Path(3) + "/model"), "new");
  EXPECT_EQ(CountEntries(), 1);
}

TEST_F(CheckpointFolderTest, EachChangeOfEachFileIsFound) {
  Save(3);
  for (const char* name : {"model", "state.json", kManifestFile}) {
    const std::string file = Path(3) + "/" + name;
    const std::string whole = ReadFile(file);
    for (size_t size = 0; size < whole.size(); ++size) {
      // The manifest without its last newline still is the manifest.
      if (name == std::string(kManifestFile) && size + 1 == whole.size()) continue;
      Overwrite(file, whole.substr(0, size));
      EXPECT_THROW(OpenCheckpoint(Path(3)), Error) << name << " cut to " << size;
      std::string flipped = whole;
      flipped[size] = static_cast<char>(flipped[size] ^ 4);
      Overwrite(file, flipped);
      EXPECT_THROW(OpenCheckpoint(Path(3)), Error) << name << " changed at " << size;
    }
    Overwrite(file, whole);
    EXPECT_NO_THROW(OpenCheckpoint(Path(3)));
    fs::remove(file);
    EXPECT_THROW(OpenCheckpoint(Path(3)), Error) << name << " is missing";
    Overwrite(file, whole);
  }
}

TEST_F(CheckpointFolderTest, FindsTheNewestWholeOne) {
  EXPECT_EQ(Newest(), "none");
  for (const int64_t step : {3, 9, 12}) Save(step);
  fs::create_directory(root_ + "/checkpoint-20");                   // not Lathe's
  fs::create_directory(root_ + "/checkpoint-0030");                 // no name of ours
  fs::create_directory_symlink(Path(3), root_ + "/checkpoint-40");  // its manifest says 3
  EXPECT_EQ(Newest(), "checkpoint-12");
  fs::resize_file(Path(12) + "/model", 3);
  fs::remove(Path(9) + "/state.json");
  const CheckpointSearch search = FindNewestCheckpoint(root_);
  EXPECT_EQ(search.newest->path, Path(3));
  EXPECT_EQ(search.left_out,
            (std::vector<std::string>{"checkpoint-20: manifest.json: No such file or directory",
                                      "checkpoint-12: model: has 3 bytes, but its manifest says 7",
                                      "checkpoint-9: state.json: No such file or directory"}));
}

// Users move checkpoints to other disks and leave links to them.
TEST_F(CheckpointFolderTest, ALinkToACheckpointCountsAsOne) {
  const std::string disk = root_ + "/disk";
  fs::create_directory(disk);
  for (const int64_t step : {3, 9, 12}) Save(step);
  fs::rename(Path(12), disk + "/moved");
  fs::create_directory_symlink("disk/moved", Path(12));
  const CheckpointSearch search = FindNewestCheckpoint(root_);
  ASSERT_TRUE(search.newest);
  EXPECT_EQ(search.newest->path, Path(12));
  EXPECT_EQ(search.newest->manifest.step, 12);
  EXPECT_TRUE(search.left_out.empty());
  EXPECT_EQ(NextRun(root_), 2);
  fs::resize_file(disk + "/moved/model", 3);
  EXPECT_EQ(FindNewestCheckpoint(root_).left_out,
            std::vector<std::string>{"checkpoint-12: model: has 3 bytes, but its manifest says 7"});
}

TEST_F(CheckpointFolderTest, ALinkThatLeadsNowhereIsLeftOutWithTheReason) {
  Save(3);
  fs::create_symlink("/unmounted/checkpoint-9", Path(9));
  fs::create_symlink(Path(3) + "/model", Path(10));
  fs::create_symlink(Path(11), Path(11));
  const CheckpointSearch search = FindNewestCheckpoint(root_);
  ASSERT_TRUE(search.newest);
  EXPECT_EQ(search.newest->path, Path(3));
  EXPECT_EQ(search.left_out,
            (std::vector<std::string>{
                "checkpoint-9: is a link to /unmounted/checkpoint-9, which is no folder here",
                "checkpoint-10: is a link to " + Path(3) + "/model, which is no folder here",
                "checkpoint-11: is a link to " + Path(11) + ", which is no folder here"}));
  EXPECT_THROW(OpenCheckpoint(Path(9)), Error);
}

// Nothing outside of the folder is deleted, whatever is saved, rotated or removed.
TEST_F(CheckpointFolderTest, WhatALinkLeadsToStays) {
  const std::string disk = root_ + "/disk", moved = disk + "/moved";
  fs::create_directory(disk);
  for (const int64_t step : {1, 2, 3, 4}) Save(step);
  fs::rename(Path(2), moved);
  fs::create_directory_symlink(moved, Path(2));
  RotateCheckpoints(root_, 1, 4, 2, [](const std::string&) { return false; });
  EXPECT_FALSE(fs::exists(Path(1)));
  for (const int64_t step : {2, 3, 4}) EXPECT_TRUE(fs::exists(Path(step))) << step;
  EXPECT_TRUE(fs::is_symlink(Path(2)));
  Save(2, 1, "other!!");  // the training has gone on from before
  EXPECT_FALSE(fs::is_symlink(Path(2)));
  EXPECT_EQ(ReadFile(Path(2) + "/model"), "other!!");
  EXPECT_EQ(ReadFile(moved + "/model"), "weights");
  fs::create_directory_symlink(moved, Path(9));
  RemoveCheckpoint(Path(9));
  EXPECT_FALSE(fs::is_symlink(Path(9)));
  EXPECT_NO_THROW(OpenCheckpoint(moved));
  fs::create_directory_symlink(moved, root_ + "/.checkpoint.trash.checkpoint-9.77");
  SweepDrafts(root_);
  EXPECT_NO_THROW(OpenCheckpoint(moved));
  EXPECT_EQ(CountEntries(), 4);  // disk and three checkpoints
}

TEST_F(CheckpointFolderTest, ALaterTrainingCountsMoreThanMoreSteps) {
  EXPECT_EQ(NextRun(root_), 1);
  Save(1000, 1);
  EXPECT_EQ(NextRun(root_), 2);
  Save(10, 2);
  EXPECT_EQ(Newest(), "checkpoint-10");
}

TEST_F(CheckpointFolderTest, TheNewestOfThoseThatAreWanted) {
  Save(5);
  Save(7, 2);
  Save(9, 3, "other weights");
  const auto earlier = [](const CheckpointManifest& manifest) { return manifest.run < 3; };
  EXPECT_EQ(Newest(), "checkpoint-9");
  EXPECT_EQ(Newest(earlier), "checkpoint-7");
  EXPECT_TRUE(FindNewestCheckpoint(root_, earlier).left_out.empty());
  fs::resize_file(Path(7) + "/model", 3);
  EXPECT_EQ(Newest(earlier), "checkpoint-5");
  EXPECT_EQ(FindNewestCheckpoint(root_, earlier).left_out.size(), 1u);
}

TEST_F(CheckpointFolderTest, RotationKeepsTheBestTheNewestAndThoseOfOthers) {
  Save(1000, 1);
  for (const int64_t step : {1, 2, 3, 4, 5}) Save(step, 2);
  RotateCheckpoints(root_, 2, 5, 2, [&](const std::string& path) { return path == Path(2); });
  for (const int64_t step : {1, 3, 4}) EXPECT_FALSE(fs::exists(Path(step))) << step;
  for (const int64_t step : {2, 5, 1000}) EXPECT_TRUE(fs::exists(Path(step))) << step;
  RotateCheckpoints(root_, 2, 5, 0, [](const std::string&) { return false; });
  EXPECT_FALSE(fs::exists(Path(2)));
  EXPECT_TRUE(fs::exists(Path(5)));
  EXPECT_EQ(CountEntries(), 2);
}

// A training that went on before a damaged checkpoint must not lose its only whole one to it.
TEST_F(CheckpointFolderTest, RotationCountsNoLaterOne) {
  for (const int64_t step : {3, 9, 12}) Save(step);
  for (const int64_t step : {9, 12}) fs::resize_file(Path(step) + "/model", 3);
  Save(6);
  RotateCheckpoints(root_, 1, 6, 1, [](const std::string&) { return false; });
  EXPECT_FALSE(fs::exists(Path(3)));
  EXPECT_EQ(Newest(), "checkpoint-6");
  for (const int64_t step : {9, 12}) EXPECT_TRUE(fs::exists(Path(step))) << step;
}

// Otherwise no training could go on any more.
TEST_F(CheckpointFolderTest, RotationKeepsTheNewestThatIsNotTheModelAlone) {
  for (const int64_t step : {1, 2}) Save(step);
  for (const int64_t step : {3, 4, 5}) {
    CheckpointDraft draft(root_, CheckpointName(step));
    WriteFileAtomically(draft.path() + "/model", "weights");
    draft.Commit({.step = step, .run = 1, .resumable = false});
  }
  RotateCheckpoints(root_, 1, 5, 1, [](const std::string&) { return false; });
  for (const int64_t step : {1, 3, 4}) EXPECT_FALSE(fs::exists(Path(step))) << step;
  EXPECT_EQ(Newest(), "checkpoint-2");
  EXPECT_TRUE(fs::exists(Path(5)));
}

// Where folders can't be exchanged in one step, a process may be killed between two.
TEST_F(CheckpointFolderTest, OneThatMadeRoomForAnotherGetsItsNameBack) {
  Save(3);
  const auto set_aside = [&] { fs::rename(Path(3), root_ + "/.checkpoint.aside.checkpoint-3.77"); };
  set_aside();
  EXPECT_EQ(Newest(), "checkpoint-3");
  set_aside();
  SweepDrafts(root_, "checkpoint-4");
  EXPECT_FALSE(fs::exists(Path(3)));
  SweepDrafts(root_, "checkpoint-3");
  EXPECT_EQ(ReadFile(Path(3) + "/model"), "weights");
  set_aside();
  EXPECT_NO_THROW(OpenCheckpoint(Path(3) + "/"));
  set_aside();
  Save(3, 1, "other!!");
  EXPECT_EQ(Newest(), "checkpoint-3");
  EXPECT_EQ(ReadFile(Path(3) + "/model"), "other!!");
  EXPECT_EQ(CountEntries(), 1);
}

// A hook of the program may have written anything.
TEST_F(CheckpointFolderTest, FilesThatWouldNotBeFoundAgainAreRefused) {
  const auto save_with = [&](const std::string& name) -> std::string {
    CheckpointDraft draft(root_, "checkpoint-1");
    WriteFileAtomically(draft.path() + "/" + name, "x");
    try {
      draft.Commit({.step = 1});
    } catch (const Error& e) {
      return e.message();
    }
    OpenCheckpoint(Path(1));
    return "whole";
  };
  EXPECT_EQ(save_with("a b\n"), "whole");
  EXPECT_EQ(save_with("manifest.json"),
            Path(1) + "/manifest.json: this name is for the checkpoint's own list of files");
  EXPECT_EQ(save_with("\xff"), Path(1) + "/\xff: the name of a file in a checkpoint must be UTF-8");
  WriteFileAtomically(root_ + "/outside", "weights");
  CheckpointDraft draft(root_, "checkpoint-2");
  fs::create_symlink(root_ + "/outside", draft.path() + "/link");
  draft.Commit({.step = 2});
  EXPECT_NO_THROW(OpenCheckpoint(Path(2)));
}

TEST_F(CheckpointFolderTest, NumbersAreWrittenInOneWay) {
  for (const char* name : {"state_0", "state_12", "state_3", "state_03", "state_", "state_4x",
                           "state_-5", "state_+6", "state_99999999999999999999", "other_7"})
    fs::create_directory(root_ + "/" + name);
  Overwrite(root_ + "/state_8", "no folder");
  std::vector<int64_t> numbers;
  for (const NumberedFolder& folder : ListNumberedFolders(root_, "state_"))
    numbers.push_back(folder.number);
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 3, 12}));
  EXPECT_TRUE(ListNumberedFolders(root_ + "/nowhere", "state_").empty());
}

TEST_F(CheckpointFolderTest, SweepsWhatAKilledProcessLeft) {
  fs::create_directory(root_ + "/.checkpoint.tmp.checkpoint-3.77");
  WriteFileAtomically(root_ + "/.checkpoint.tmp.checkpoint-3.77/model", "half");
  Save(2);
  SweepDrafts(root_);
  EXPECT_EQ(CountEntries(), 1);
}

TEST_F(CheckpointFolderTest, SweepsTheRemainsOfOneNameAlone) {
  for (const char* name : {".checkpoint.tmp.x.77", ".checkpoint.trash.x.8", ".checkpoint.tmp.y.77",
                           ".checkpoint.tmp.x.1.77", ".checkpoint.tmp.xx.77"})
    fs::create_directory(root_ + "/" + name);
  SweepDrafts(root_, "x");
  EXPECT_EQ(CountEntries(), 3);
  for (const char* name : {".checkpoint.tmp.x.77", ".checkpoint.trash.x.8"})
    EXPECT_FALSE(fs::exists(root_ + "/" + name)) << name;
  SweepDrafts(root_);
  EXPECT_EQ(CountEntries(), 0);
}

TEST_F(CheckpointFolderTest, ErrorsNameThePlaceInsteadOfTheHiddenFolder) {
  const CheckpointDraft draft(root_, CheckpointName(3));
  const Error full = FileError(draft.path() + "/model", ENOSPC);
  const Error shown = draft.Shown(full);
  EXPECT_EQ(shown.message(), Path(3) + "/model: No space left on device");
  EXPECT_EQ(shown.hint(), full.hint());
  EXPECT_EQ(shown.code(), full.code());
  EXPECT_EQ(draft.Shown(FileError(root_ + "/x", ENOSPC)).message(),
            root_ + "/x: No space left on device");
  // A message that happens to begin with the folder's path stays whole.
  const Error other = InvalidArgument(draft.path() + "-like names are taken");
  EXPECT_EQ(draft.Shown(other).message(), other.message());
}

// A pipe tells nothing before somebody writes to it, so nothing may wait for it.
TEST_F(CheckpointFolderTest, APipeInTheCheckpointIsLeftOutAtOnce) {
  for (const int64_t step : {1, 2, 3}) Save(step);
  for (const std::string& file : {Path(2) + "/model", Path(3) + "/" + kManifestFile}) {
    fs::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  }
  EXPECT_EQ(NextRun(root_), 2);
  const CheckpointSearch search = FindNewestCheckpoint(root_);
  ASSERT_TRUE(search.newest);
  EXPECT_EQ(search.newest->path, Path(1));
  EXPECT_EQ(search.left_out,
            (std::vector<std::string>{"checkpoint-3: manifest.json: is not a regular file",
                                      "checkpoint-2: model: is not a regular file"}));
}

TEST_F(CheckpointFolderTest, ReasonsNameTheFileInTheCheckpoint) {
  for (const int64_t step : {1, 2, 3}) Save(step);
  Overwrite(Path(1) + "/manifest.json", std::string(300, '['));
  Overwrite(Path(2) + "/manifest.json", std::string("{}\0", 3));
  Overwrite(Path(3) + "/manifest.json", "{");
  EXPECT_EQ(FindNewestCheckpoint(root_).left_out,
            (std::vector<std::string>{
                "checkpoint-1: manifest.json: the JSON is nested more than 200 levels deep",
                "checkpoint-2: manifest.json: the JSON has a NUL at byte 3",
                "checkpoint-3: manifest.json: is cut off or damaged"}));
}

// A manifest can be well-formed, with a digest that is right, and yet make no sense.
TEST_F(CheckpointFolderTest, ManifestsThatMakeNoSenseAreErrors) {
  Save(1);
  const auto reason = [&](const char* key, const nlohmann::json& value) {
    const std::string path = Path(1) + "/manifest.json";
    nlohmann::json manifest = ParseJson(ReadFile(path));
    const nlohmann::json before = manifest;
    manifest[key] = value;
    manifest.erase("manifest_sha256");
    manifest["manifest_sha256"] = Sha256(DumpJson(manifest));
    Overwrite(path, DumpJson(manifest));
    const std::string message = FindNewestCheckpoint(root_).left_out.at(0);
    EXPECT_EQ(NextRun(root_), 1);
    Overwrite(path, DumpJson(before));
    return message;
  };
  EXPECT_EQ(reason("about", {1}), "checkpoint-1: manifest.json: \"about\" must be an object");
  EXPECT_EQ(reason("run", INT64_MAX),
            "checkpoint-1: manifest.json: \"run\" must be a whole number from 0 to "
            "9007199254740992 but is 9223372036854775807");
  EXPECT_EQ(reason("world_size", int64_t{1} << 40),
            "checkpoint-1: manifest.json: \"world_size\" must be a whole number from 1 to 1048576 "
            "but is 1099511627776");
  EXPECT_EQ(Newest(), "checkpoint-1");
}

TEST_F(CheckpointFolderTest, AModelAloneIsNotResumed) {
  CheckpointDraft draft(root_, CheckpointName(4));
  WriteFileAtomically(draft.path() + "/model", "weights");
  draft.Commit({.step = 4, .resumable = false});
  EXPECT_EQ(Newest(), "none");
  EXPECT_EQ(FindNewestCheckpoint(root_).left_out,
            std::vector<std::string>{"checkpoint-4: holds the model alone (save_only_model)"});
}

}  // namespace
}  // namespace lathe
