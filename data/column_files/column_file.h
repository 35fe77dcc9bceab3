// ColumnFile: columns of numbers in an HDF5 file, of which any part can be read at any time.
//
//   ColumnFileWriter writer("rows.draft", "rows.h5");       // column_file_writer.h
//   writer.Add("lengths", ElementType::kU32);
//   writer.Append("lengths", lengths.data(), 3);
//   writer.Finish({{"rows", 3}});
//   ...
//   const ColumnFile file("rows.h5");
//   std::vector<uint32_t> lengths = file.ReadWhole<uint32_t>("lengths");
//
// Each column is a dataset with one dimension, in chunks without a filter. A directory follows
// HDF5's part of the file: JSON that holds the place and the digest of each chunk. A footer of
// fixed size ends the file with the directory's size and SHA-256. Programs with HDF5 read the
// datasets as usual. Lathe needs the directory alone, because HDF5 is not safe against damaged
// files.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

enum class ElementType { kU8, kU16, kU32, kI64, kF32 };

// Returns the bytes of an element.
int64_t SizeOf(ElementType type);

template <typename T>
constexpr ElementType ElementTypeOf() {
  if constexpr (std::is_same_v<T, uint8_t>) return ElementType::kU8;
  if constexpr (std::is_same_v<T, uint16_t>) return ElementType::kU16;
  if constexpr (std::is_same_v<T, uint32_t>) return ElementType::kU32;
  if constexpr (std::is_same_v<T, int64_t>) return ElementType::kI64;
  if constexpr (std::is_same_v<T, float>) return ElementType::kF32;
}

struct Column {
  std::string name;
  ElementType type = ElementType::kU8;
  int64_t size = 0;                // elements
  std::vector<int64_t> addresses;  // of each chunk: where it begins in the file
  std::vector<uint64_t> digests;   // of each chunk's bytes (RunningHash)

  int64_t bytes() const { return size * SizeOf(type); }
};

// Every chunk has as many bytes, the last one with zeros at its end.
inline constexpr int64_t kColumnChunkBytes = int64_t{1} << 18;

// A finished file, open for reading. Several threads may read at once. The file may be renamed or
// removed meanwhile.
class ColumnFile {
 public:
  // Reads the directory only. Throws NotFound if there is no file, and DataLoss if its size, footer
  // or directory is wrong.
  explicit ColumnFile(std::string path);
  ~ColumnFile();
  ColumnFile(const ColumnFile&) = delete;
  ColumnFile& operator=(const ColumnFile&) = delete;

  const std::string& path() const { return path_; }
  const nlohmann::json& about() const { return *about_; }  // what Finish was given
  // Returns a path by which other processes of the same user can open the same file, even if it has
  // been replaced meanwhile. It holds as long as this object.
  std::string PathForOthers() const;

  // Returns the column; null if there is none.
  const Column* Find(const std::string& name) const;

  // Copies bytes [begin, begin + size) of a column, without a look at the digests. Throws DataLoss
  // if the file lacks them.
  void Read(const Column& column, int64_t begin, int64_t size, void* to) const;

  // Returns a whole column. Throws DataLoss if there is none of this type, or if a digest differs.
  template <typename T>
  std::vector<T> ReadWhole(const std::string& name) const {
    const Column& column = Get(name, ElementTypeOf<T>());
    std::vector<T> values(static_cast<size_t>(column.size));
    ReadVerified(column, values.data());
    return values;
  }

  // Returns the error of a file that is not what was written.
  Error Damaged(const std::string& what) const;

 private:
  const Column& Get(const std::string& name, ElementType type) const;
  void ReadVerified(const Column& column, void* to) const;
  void ReadAt(int64_t address, int64_t size, void* to) const;
  void ParseDirectory(const std::string& text, int64_t body_size);

  std::string path_;
  int fd_ = -1;
  std::unique_ptr<const nlohmann::json> about_;
  std::vector<Column> columns_;
};

// The end of every column file.
struct ColumnFileFooter {
  static constexpr char kMagic[9] = "LATHE_C1";  // the last digit is the version of the format
  char magic[8];
  uint64_t directory_size;
  char directory_sha256[64];
};
static_assert(sizeof(ColumnFileFooter) == 80);

}  // namespace lathe
