// The directory of a tokenized dataset's file. A digest protects it, so changes of the file itself
// would all be refused at once. This gives each changed directory its own digest.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/data/column_files/column_file.h"
#include "lathe/data/datasets/dataset_file.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/small_dataset.h"

namespace {

constexpr int64_t kMostRows = 100;

// Writes the file's end behind the body, which stays as it is.
void WriteEnd(const std::string& path, int64_t body_size, std::string_view directory) {
  lathe::ColumnFileFooter footer;
  std::memcpy(footer.magic, lathe::ColumnFileFooter::kMagic, sizeof footer.magic);
  footer.directory_size = directory.size();
  const std::string digest = lathe::Sha256(std::string(directory));
  std::memcpy(footer.directory_sha256, digest.data(), sizeof footer.directory_sha256);
  std::filesystem::resize_file(path, static_cast<uintmax_t>(body_size));
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(directory.data(), std::ssize(directory));
  file.write(reinterpret_cast<const char*>(&footer), sizeof footer);
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  static const SmallDataset sound = MakeSmallDataset();
  static const std::string path = ScratchFile("rows.h5", sound.body);
  WriteEnd(path, std::ssize(sound.body), input);
  const TokenizedDataset dataset = OpenDatasetFile(path);
  DatasetFileExtent(dataset);
  DatasetFileTask(dataset);
  CallAll({[&] {
             for (int64_t i = 0; i < dataset.size() && i < kMostRows; ++i) dataset.Row(i);
           },
           [&] { dataset.AllScores(); }});
}
