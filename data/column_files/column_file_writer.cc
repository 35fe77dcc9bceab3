#include "lathe/data/column_files/column_file_writer.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/hdf5_session.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/column_files/running_hash.h"

namespace lathe {
namespace {

constexpr hsize_t kUnlimited = static_cast<hsize_t>(-1);  // H5S_UNLIMITED

hid_t Hdf5TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kU8:
      return Hdf5().native_uint8;
    case ElementType::kU16:
      return Hdf5().native_uint16;
    case ElementType::kU32:
      return Hdf5().native_uint32;
    case ElementType::kI64:
      return Hdf5().native_int64;
    case ElementType::kF32:
      return Hdf5().native_float;
  }
  return -1;
}

struct OpenColumn {
  Column column;
  Hdf5Handle dataset;
  std::vector<char> pending = {};  // bytes of the chunk that is not full
};

void AppendToFile(int fd, const void* data, size_t size, const std::string& path) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw FileError(path, errno);
    at += written;
    size -= static_cast<size_t>(written);
  }
}

}  // namespace

struct ColumnFileWriter::State {
  std::string path, shown_path;
  Hdf5Session session;
  Hdf5Handle file;
  std::deque<OpenColumn> columns;

  State(const std::string& to, const std::string& shown)
      : path(to),
        shown_path(shown),
        session(shown, /*writes=*/true),
        file(session.CreateFile(to)) {}

  OpenColumn& Get(const std::string& name) {
    const auto found = std::find_if(columns.begin(), columns.end(),
                                    [&](const OpenColumn& c) { return c.column.name == name; });
    Check(found != columns.end(), "column_file", "there is no column \"", name, "\"");
    return *found;
  }

  // Writes the pending bytes as the next chunk.
  void WriteChunk(OpenColumn& target) {
    const auto element = static_cast<hsize_t>(SizeOf(target.column.type));
    const hsize_t begin = target.column.addresses.size() * kColumnChunkBytes / element;
    const hsize_t size = begin + target.pending.size() / element;
    target.pending.resize(static_cast<size_t>(kColumnChunkBytes), 0);
    session.Checked(Hdf5().Dset_extent(target.dataset.get(), &size));
    session.Checked(Hdf5().Dwrite_chunk(target.dataset.get(), H5P_DEFAULT, 0, &begin,
                                        target.pending.size(), target.pending.data()));
    unsigned filters = 0;
    haddr_t address = 0;
    hsize_t bytes = 0;
    session.Checked(
        Hdf5().Dget_chunk_info_by_coord(target.dataset.get(), &begin, &filters, &address, &bytes));
    target.column.addresses.push_back(static_cast<int64_t>(address));
    RunningHash hash;
    hash.Add(target.pending.data(), target.pending.size());
    target.column.digests.push_back(hash.value());
    target.pending.clear();
  }

  void WriteDirectory(const nlohmann::json& about) {
    const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) throw FileError(shown_path, errno);
    const std::unique_ptr<const int, void (*)(const int*)> closer(&fd,
                                                                  [](const int* f) { close(*f); });
    struct stat info;
    if (fstat(fd, &info) != 0) throw FileError(shown_path, errno);
    nlohmann::json json = {
        {"body", info.st_size}, {"about", about}, {"columns", nlohmann::json::array()}};
    for (const OpenColumn& target : columns) {
      const Column& column = target.column;
      json["columns"].push_back({{"name", column.name},
                                 {"type", static_cast<int>(column.type)},
                                 {"size", column.size},
                                 {"addresses", column.addresses},
                                 {"digests", column.digests}});
    }
    const std::string text = DumpJson(json);
    ColumnFileFooter footer;
    std::memcpy(footer.magic, ColumnFileFooter::kMagic, sizeof footer.magic);
    footer.directory_size = text.size();
    std::memcpy(footer.directory_sha256, Sha256(text).data(), sizeof footer.directory_sha256);
    AppendToFile(fd, text.data(), text.size(), shown_path);
    AppendToFile(fd, &footer, sizeof footer, shown_path);
  }
};

ColumnFileWriter::ColumnFileWriter(const std::string& path, const std::string& shown_path)
    : state_(std::make_unique<State>(path, shown_path)) {}

ColumnFileWriter::~ColumnFileWriter() = default;

void ColumnFileWriter::Add(const std::string& name, ElementType type) {
  const Hdf5Session& session = state_->session;
  const hsize_t none = 0, chunk = static_cast<hsize_t>(kColumnChunkBytes / SizeOf(type));
  const Hdf5Handle space = session.Own(Hdf5().Screate_simple(1, &none, &kUnlimited), Hdf5().Sclose);
  const Hdf5Handle options = session.Own(Hdf5().Pcreate(Hdf5().dataset_creation), Hdf5().Pclose);
  session.Checked(Hdf5().Pset_obj_track_times(options.get(), false));
  session.Checked(Hdf5().Pset_chunk(options.get(), 1, &chunk));
  Column column;
  column.name = name;
  column.type = type;
  state_->columns.push_back(
      {std::move(column),
       session.Own(Hdf5().Dcreate2(state_->file.get(), name.c_str(), Hdf5TypeOf(type), space.get(),
                                   H5P_DEFAULT, options.get(), H5P_DEFAULT),
                   Hdf5().Dclose)});
}

void ColumnFileWriter::Append(const std::string& name, const void* elements, int64_t size) {
  OpenColumn& target = state_->Get(name);
  const char* at = static_cast<const char*>(elements);
  int64_t bytes = size * SizeOf(target.column.type);
  target.column.size += size;
  while (bytes > 0) {
    const int64_t piece = std::min(bytes, kColumnChunkBytes - std::ssize(target.pending));
    target.pending.insert(target.pending.end(), at, at + piece);
    at += piece;
    bytes -= piece;
    if (std::ssize(target.pending) == kColumnChunkBytes) state_->WriteChunk(target);
  }
}

void ColumnFileWriter::Finish(const nlohmann::json& about) {
  for (OpenColumn& target : state_->columns) {
    if (!target.pending.empty()) state_->WriteChunk(target);
    if (!target.dataset.Release()) state_->session.Fail();
  }
  state_->session.CloseFile(state_->file);
  state_->WriteDirectory(about);
}

}  // namespace lathe
