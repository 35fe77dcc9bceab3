#include "lathe/data/column_files/hdf5_table.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "lathe/core/base/file.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/keras_files/confined_hdf5.h"
#include "lathe/core/weight_files/stored_array.h"
#include "lathe/data/column_files/hdf5_chunk.h"

namespace lathe {
namespace {

constexpr uint64_t kMostChunkBytes = uint64_t{1} << 30;
constexpr int64_t kFingerprintRows = 16;
constexpr size_t kMostFilters = 32;  // HDF5's own limit

Error Damaged(const std::string& path, const std::string& what) {
  return DataLoss(path + ": " + Printable(what), "copy the file again, or write it again");
}

void ReadAt(int fd, const std::string& path, uint64_t offset, uint64_t size, char* to) {
  while (size > 0) {
    const ssize_t got = pread(fd, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path, errno);
    if (got == 0) throw Damaged(path, "is cut short");
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<uint64_t>(got);
  }
}

// Converts n elements, which may lie at any alignment.
template <typename From, typename To>
void Convert(const char* from, int64_t n, void* to) {
  To* out = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    if constexpr (std::is_same_v<From, uint64_t>) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        throw DataLoss("the number " + std::to_string(value) + " is too large for int64");
    }
    out[i] = static_cast<To>(value);
  }
}

using Converter = void (*)(const char* from, int64_t n, void* to);

struct StoredType {
  const char* name;  // as safetensors names it
  DType dtype;
  Converter convert;
};

constexpr StoredType kTypes[] = {
    {"F32", DType::kF32, Convert<float, float>},
    {"F64", DType::kF32, Convert<double, float>},
    {"F16", DType::kF32, Convert<Float16, float>},
    {"BF16", DType::kF32, Convert<BFloat16, float>},
    {"U8", DType::kU8, Convert<uint8_t, uint8_t>},
    {"I8", DType::kI64, Convert<int8_t, int64_t>},
    {"I16", DType::kI64, Convert<int16_t, int64_t>},
    {"U16", DType::kI64, Convert<uint16_t, int64_t>},
    {"I32", DType::kI64, Convert<int32_t, int64_t>},
    {"U32", DType::kI64, Convert<uint32_t, int64_t>},
    {"I64", DType::kI64, Convert<int64_t, int64_t>},
    {"U64", DType::kI64, Convert<uint64_t, int64_t>},
};

// What the confined child found, after checks of all that it said.
struct StoredColumn {
  Hdf5Table::Column column;
  Converter convert = nullptr;
  uint64_t element_bytes = 0;
  int64_t rows = 0;
  int64_t row_elements = 1;
  // The elements lie one after another from `offset` on, in the file or in the copies.
  bool is_copied = false;
  uint64_t offset = 0;
  // Or they lie in chunks.
  std::vector<uint64_t> chunk_dims = {}, blocks = {};  // of each dimension: elements, chunks
  uint64_t chunk_bytes = 0;                            // without filters
  std::vector<Hdf5Filter> filters = {};
  std::vector<Hdf5Chunk> chunks = {};

  uint64_t row_bytes() const { return static_cast<uint64_t>(row_elements) * element_bytes; }
};

// Takes over what the child said about chunks. Throws DataLoss without the file's name.
void SetChunks(const Hdf5Array& found, uint64_t file_size, StoredColumn& stored) {
  const std::string wrong = "the chunks of \"" + found.name + "\" do not fit the file";
  uint64_t elements = 1, count = 1;
  if (found.chunk_dims.size() != found.dims.size() || found.filters.size() > kMostFilters)
    throw DataLoss(wrong);
  for (size_t i = 0; i < found.dims.size(); ++i) {
    const uint64_t size = found.chunk_dims[i];
    if (size == 0 || __builtin_mul_overflow(elements, size, &elements) ||
        elements > kMostChunkBytes)
      throw DataLoss(wrong);
    stored.blocks.push_back((found.dims[i] + size - 1) / size);
    if (__builtin_mul_overflow(count, stored.blocks.back(), &count)) throw DataLoss(wrong);
  }
  stored.chunk_dims = found.chunk_dims;
  stored.chunk_bytes = elements * stored.element_bytes;
  if (stored.chunk_bytes > kMostChunkBytes || found.chunks.size() != count) throw DataLoss(wrong);
  for (const Hdf5Chunk& chunk : found.chunks) {
    if (chunk.offset > file_size || chunk.size > file_size - chunk.offset)
      throw DataLoss("is cut short: a part of \"" + found.name + "\" lies behind its end");
  }
  for (const uint64_t filter : found.filters)
    stored.filters.push_back(static_cast<Hdf5Filter>(filter));
  stored.chunks = found.chunks;
}

StoredColumn ColumnOf(const Hdf5Array& found, uint64_t file_size, uint64_t copies_size) {
  StoredColumn stored;
  stored.column.name = found.name;
  const auto* const type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                        [&](const StoredType& t) { return found.dtype == t.name; });
  if (type == std::end(kTypes))
    throw DataLoss("\"" + found.name + "\" has a type that Lathe does not have");
  stored.column.dtype = type->dtype;
  stored.convert = type->convert;
  stored.element_bytes = static_cast<uint64_t>(SizeOfElement(found.dtype));
  if (found.dims.empty())
    throw InvalidArgument("\"" + found.name + "\" is a single number and has no rows");
  Shape shape;
  for (const uint64_t dim : found.dims)
    shape.push_back(dim <= INT64_MAX ? static_cast<int64_t>(dim) : -1);
  if (!IsSensible(shape)) throw DataLoss("\"" + found.name + "\" has an impossible shape");
  stored.rows = shape[0];
  stored.column.row_shape = Shape(shape.begin() + 1, shape.end());
  stored.row_elements = NumElements(stored.column.row_shape);
  if (!found.chunks.empty()) {
    SetChunks(found, file_size, stored);
    return stored;
  }
  stored.is_copied = found.is_copied;
  stored.offset = found.offset;
  const uint64_t limit = found.is_copied ? copies_size : file_size;
  const uint64_t bytes = static_cast<uint64_t>(stored.rows) * stored.row_bytes();
  if (bytes > 0 && (found.offset > limit || bytes > limit - found.offset))
    throw DataLoss("is cut short: a part of \"" + found.name + "\" lies behind its end");
  return stored;
}

// Names the file in the errors that `body` throws about its contents.
template <typename Body>
auto NamingFile(const std::string& path, Body body) try {
  return body();
} catch (const Error& e) {
  if (e.code() == absl::StatusCode::kDataLoss) throw Damaged(path, e.message());
  if (e.code() == absl::StatusCode::kInvalidArgument)
    throw InvalidArgument(path + ": " + Printable(e.message()), e.hint());
  throw;
}

Hdf5Columns FindColumns(const std::string& path, const std::vector<std::string>& names) {
  Check(!names.empty(), "hdf5_table", "expected at least one column");
  const MappedFile memory(path);
  const MemoryFile copies;
  return NamingFile(path, [&]() -> Hdf5Columns {
    std::vector<Hdf5Array> found = FindConfined(
        memory, copies, path,
        [&](std::string_view bytes, int fd) { return FindHdf5Columns(bytes, fd, names); });
    if (found.size() != names.size()) throw DataLoss("its reader gave a wrong answer");
    return {std::move(found), copies.Map(), memory.size()};
  });
}

}  // namespace

struct Hdf5Table::State {
  std::string path;
  int fd = -1;
  std::shared_ptr<const MappedFile> copies;
  std::vector<StoredColumn> columns;
  uint64_t file_size = 0;

  // The chunks that were used last, the newest first.
  using Key = std::pair<size_t, size_t>;  // column, chunk
  using Elements = std::shared_ptr<const std::string>;
  std::mutex mutex;
  std::list<std::pair<Key, Elements>> kept;
  std::map<Key, std::list<std::pair<Key, Elements>>::iterator> places;
  int64_t cache_bytes = 0, kept_bytes = 0;

  ~State() {
    if (fd >= 0) close(fd);
  }

  Elements Find(const Key& key) {
    std::lock_guard lock(mutex);
    const auto found = places.find(key);
    if (found == places.end()) return nullptr;
    kept.splice(kept.begin(), kept, found->second);
    return found->second->second;
  }

  void Keep(const Key& key, const Elements& elements) {
    std::lock_guard lock(mutex);
    if (places.contains(key)) return;  // another thread has read it, too
    kept.emplace_front(key, elements);
    places[key] = kept.begin();
    kept_bytes += std::ssize(*elements);
    while (kept_bytes > cache_bytes && kept.size() > 1) {
      kept_bytes -= std::ssize(*kept.back().second);
      places.erase(kept.back().first);
      kept.pop_back();
    }
  }

  // Several threads may read the same chunk at once. That costs less than to let all others wait.
  Elements ReadChunk(size_t number, size_t chunk_number) {
    const Key key(number, chunk_number);
    if (Elements elements = Find(key)) return elements;
    const StoredColumn& stored = columns[number];
    const Hdf5Chunk& chunk = stored.chunks[chunk_number];
    std::vector<Hdf5Filter> filters;
    for (size_t i = 0; i < stored.filters.size(); ++i) {
      if ((chunk.skipped >> i & 1) == 0) filters.push_back(stored.filters[i]);
    }
    std::string bytes(chunk.size, '\0');
    ReadAt(fd, path, chunk.offset, chunk.size, bytes.data());
    Elements elements;
    try {
      elements = std::make_shared<const std::string>(
          DecodeHdf5Chunk(std::move(bytes), filters, stored.chunk_bytes, stored.element_bytes));
    } catch (const Error& e) {
      throw Damaged(path, "dataset \"" + stored.column.name + "\": " + e.message());
    }
    Keep(key, elements);
    return elements;
  }

  // Collects the bytes of a row from the chunks in which its parts lie.
  void ReadFromChunks(size_t number, int64_t row, char* to) {
    const StoredColumn& stored = columns[number];
    const Shape& shape = stored.column.row_shape;
    const size_t rank = stored.chunk_dims.size();
    // Dimension i of the dataset is dimension i - 1 of the row.
    const auto chunk_row = static_cast<uint64_t>(row) % stored.chunk_dims[0];
    std::vector<uint64_t> block(rank, 0);
    block[0] = static_cast<uint64_t>(row) / stored.chunk_dims[0];
    for (bool more = true; more;) {
      size_t chunk_number = 0;
      for (size_t i = 0; i < rank; ++i) chunk_number = chunk_number * stored.blocks[i] + block[i];
      const Elements elements = ReadChunk(number, chunk_number);
      // Copies run after run of the last dimension.
      std::vector<uint64_t> begin(rank, 0), size(rank, 1), at(rank, 0);
      for (size_t i = 1; i < rank; ++i) {
        begin[i] = block[i] * stored.chunk_dims[i];
        size[i] = std::min(stored.chunk_dims[i], static_cast<uint64_t>(shape[i - 1]) - begin[i]);
      }
      const uint64_t run = size[rank - 1];
      for (bool inside = true; inside;) {
        uint64_t from = chunk_row, place = 0;
        for (size_t i = 1; i < rank; ++i) {
          from = from * stored.chunk_dims[i] + at[i];
          place = place * static_cast<uint64_t>(shape[i - 1]) + begin[i] + at[i];
        }
        std::memcpy(to + place * stored.element_bytes,
                    elements->data() + from * stored.element_bytes, run * stored.element_bytes);
        inside = false;
        for (size_t i = rank - 1; i-- > 1;) {
          if (++at[i] < size[i]) {
            inside = true;
            break;
          }
          at[i] = 0;
        }
      }
      more = false;
      for (size_t i = rank; i-- > 1;) {
        if (++block[i] < stored.blocks[i]) {
          more = true;
          break;
        }
        block[i] = 0;
      }
    }
  }
};

Hdf5Table::Hdf5Table(const std::string& path, const std::vector<std::string>& names,
                     int64_t cache_bytes)
    : Hdf5Table(path, FindColumns(path, names), cache_bytes) {}

Hdf5Table::Hdf5Table(const std::string& path, const Hdf5Columns& found, int64_t cache_bytes)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.cache_bytes = cache_bytes;
  s.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (s.fd < 0) throw FileError(path, errno);
  s.file_size = found.file_size;
  s.copies = found.copies;
  NamingFile(path, [&] {
    if (found.arrays.empty()) throw DataLoss("its reader gave a wrong answer");
    for (const Hdf5Array& array : found.arrays)
      s.columns.push_back(ColumnOf(array, s.file_size, s.copies->size()));
  });
  for (const StoredColumn& stored : s.columns) {
    if (stored.rows == rows()) continue;
    throw InvalidArgument(path + ": dataset \"" + stored.column.name + "\" has " +
                          std::to_string(stored.rows) + " rows but \"" + s.columns[0].column.name +
                          "\" has " + std::to_string(rows()));
  }
}

Hdf5Table::~Hdf5Table() = default;

int64_t Hdf5Table::rows() const { return state_->columns[0].rows; }

const Hdf5Table::Column& Hdf5Table::column(size_t i) const { return state_->columns.at(i).column; }

void Hdf5Table::ReadRow(size_t column, int64_t row, void* to) const {
  State& s = *state_;
  const StoredColumn& stored = s.columns.at(column);
  Check(row >= 0 && row < stored.rows, "hdf5_table", "row ", row, " does not exist; there are ",
        stored.rows);
  if (stored.row_elements == 0) return;
  const uint64_t offset = stored.offset + static_cast<uint64_t>(row) * stored.row_bytes();
  std::string bytes;
  const char* from = nullptr;
  if (stored.is_copied) {
    from = s.copies->data() + offset;
  } else {
    bytes.resize(stored.row_bytes());
    if (stored.chunks.empty()) {
      ReadAt(s.fd, s.path, offset, stored.row_bytes(), bytes.data());
    } else {
      s.ReadFromChunks(column, row, bytes.data());
    }
    from = bytes.data();
  }
  try {
    stored.convert(from, stored.row_elements, to);
  } catch (const Error& e) {
    throw Damaged(s.path, "dataset \"" + stored.column.name + "\": " + e.message());
  }
}

std::string Hdf5Table::Fingerprint() const {
  const State& s = *state_;
  std::string text = std::to_string(s.file_size) + " bytes";
  for (size_t i = 0; i < s.columns.size(); ++i) {
    const StoredColumn& stored = s.columns[i];
    std::string values;
    std::string row(static_cast<size_t>(stored.row_elements * SizeOf(stored.column.dtype)), '\0');
    for (int64_t r = 0; r < std::min(kFingerprintRows, stored.rows); ++r) {
      ReadRow(i, r, row.data());
      values += row;
    }
    text += ", " + stored.column.name + " " + ToString(stored.column.row_shape) + " " +
            std::to_string(HashName(values));
  }
  return text;
}

}  // namespace lathe
