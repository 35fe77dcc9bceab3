#include "lathe/data/column_files/column_file.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/column_files/running_hash.h"

namespace lathe {
namespace {

// The directory of a column of 10 billion numbers has some 20 MB.
constexpr uint64_t kLargestDirectory = uint64_t{1} << 30;

}  // namespace

int64_t SizeOf(ElementType type) {
  switch (type) {
    case ElementType::kU8:
      return 1;
    case ElementType::kU16:
      return 2;
    case ElementType::kU32:
    case ElementType::kF32:
      return 4;
    case ElementType::kI64:
      return 8;
  }
  return 0;
}

ColumnFile::ColumnFile(std::string path)
    : path_(std::move(path)), fd_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (fd_ < 0) throw FileError(path_, errno);
  try {
    struct stat info;
    if (fstat(fd_, &info) != 0) throw FileError(path_, errno);
    ColumnFileFooter footer;
    const int64_t before_footer = info.st_size - static_cast<int64_t>(sizeof footer);
    if (!S_ISREG(info.st_mode) || before_footer < 0) throw Damaged("it is too short");
    ReadAt(before_footer, sizeof footer, &footer);
    if (std::memcmp(footer.magic, ColumnFileFooter::kMagic, sizeof footer.magic) != 0)
      throw Damaged("it is not whole, or from another version");
    if (footer.directory_size > kLargestDirectory ||
        static_cast<int64_t>(footer.directory_size) > before_footer)
      throw Damaged("its directory has a wrong size");
    std::string directory(footer.directory_size, '\0');
    const int64_t body_size = before_footer - std::ssize(directory);
    ReadAt(body_size, std::ssize(directory), directory.data());
    if (Sha256(directory) !=
        std::string_view(footer.directory_sha256, sizeof footer.directory_sha256))
      throw Damaged("its directory has another digest");
    ParseDirectory(directory, body_size);
  } catch (...) {
    close(fd_);
    throw;
  }
}

ColumnFile::~ColumnFile() { close(fd_); }

std::string ColumnFile::PathForOthers() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

// The digest vouches for what the directory says, so this only checks what memory depends on.
void ColumnFile::ParseDirectory(const std::string& text, int64_t body_size) {
  try {
    const nlohmann::json json = ParseJson(text);
    if (GetWholeNumber<int64_t>(json.at("body")) != body_size) throw Damaged("it has a wrong size");
    about_ = std::make_unique<const nlohmann::json>(json.at("about"));
    for (const nlohmann::json& each : json.at("columns")) {
      Column column{.name = each.at("name"),
                    .type = static_cast<ElementType>(GetWholeNumber<int>(each.at("type"))),
                    .size = GetWholeNumber<int64_t>(each.at("size")),
                    .addresses = {},
                    .digests = {}};
      for (const nlohmann::json& address : each.at("addresses"))
        column.addresses.push_back(GetWholeNumber<int64_t>(address));
      for (const nlohmann::json& digest : each.at("digests"))
        column.digests.push_back(GetWholeNumber<uint64_t>(digest));
      // A size below that of the file keeps the products below from overflowing.
      bool fits = SizeOf(column.type) > 0 && column.size >= 0 && column.size <= body_size;
      const int64_t chunks =
          fits ? (column.bytes() + kColumnChunkBytes - 1) / kColumnChunkBytes : -1;
      fits = fits && std::ssize(column.addresses) == chunks && std::ssize(column.digests) == chunks;
      for (const int64_t address : column.addresses)
        fits = fits && address >= 0 && address <= body_size - kColumnChunkBytes;
      if (!fits) throw Damaged("column \"" + column.name + "\" does not fit the file");
      columns_.push_back(std::move(column));
    }
  } catch (const nlohmann::json::exception& e) {
    throw Damaged(std::string("its directory: ") + e.what());
  }
}

const Column* ColumnFile::Find(const std::string& name) const {
  const auto found = std::find_if(columns_.begin(), columns_.end(),
                                  [&](const Column& column) { return column.name == name; });
  return found == columns_.end() ? nullptr : &*found;
}

const Column& ColumnFile::Get(const std::string& name, ElementType type) const {
  const Column* column = Find(name);
  if (column == nullptr || column->type != type)
    throw Damaged("it has no column \"" + name + "\" of this type");
  return *column;
}

void ColumnFile::Read(const Column& column, int64_t begin, int64_t size, void* to) const {
  if (begin < 0 || size < 0 || begin > column.bytes() - size)
    throw Damaged("column \"" + column.name + "\" is too short");
  char* at = static_cast<char*>(to);
  while (size > 0) {
    const int64_t in_chunk = begin % kColumnChunkBytes;
    const int64_t piece = std::min(size, kColumnChunkBytes - in_chunk);
    ReadAt(column.addresses[static_cast<size_t>(begin / kColumnChunkBytes)] + in_chunk, piece, at);
    at += piece;
    begin += piece;
    size -= piece;
  }
}

void ColumnFile::ReadVerified(const Column& column, void* to) const {
  std::vector<char> chunk(static_cast<size_t>(kColumnChunkBytes));
  char* at = static_cast<char*>(to);
  int64_t left = column.bytes();
  for (size_t i = 0; i < column.addresses.size(); ++i) {
    ReadAt(column.addresses[i], kColumnChunkBytes, chunk.data());
    RunningHash hash;
    hash.Add(chunk.data(), chunk.size());
    if (hash.value() != column.digests[i])
      throw Damaged("a part of column \"" + column.name + "\" has another digest");
    const int64_t piece = std::min(left, kColumnChunkBytes);
    std::memcpy(at, chunk.data(), static_cast<size_t>(piece));
    at += piece;
    left -= piece;
  }
}

// Reads instead of mapping: a mapped file that another process cuts off would end this one.
void ColumnFile::ReadAt(int64_t address, int64_t size, void* to) const {
  char* at = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = pread(fd_, at, static_cast<size_t>(size), address);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path_, errno);
    if (got == 0) throw Damaged("it is cut off");
    at += got;
    address += got;
    size -= got;
  }
}

Error ColumnFile::Damaged(const std::string& what) const {
  return DataLoss(path_ + ": is damaged: " + what, "remove the file; it is made again when needed");
}

}  // namespace lathe
