#include "lathe/core/keras_files/hdf5_arrays.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/libraries.h"
#include "lathe/core/keras_files/hdf5_objects.h"

namespace lathe {
namespace {

constexpr uint64_t kMostNames = 1'000'000, kMostBytesOfNames = uint64_t{64} << 20;
constexpr int kMostRank = 8;
constexpr uint64_t kMostElements = uint64_t{1} << 40;
constexpr uint64_t kPiece = uint64_t{16} << 20;  // bytes that are read at once
constexpr uint64_t kAlignment = 64;              // of copies
constexpr H5Z_filter_t kLzf = 32000;             // h5py brings it

// Returns the texts of an attribute; none if it isn't there.
std::vector<std::string> TextsOf(hid_t object, const std::string& name) {
  const std::string wrong = "the attribute \"" + name + "\" can't be read";
  if (Checked(Hdf5().Aexists(object, name.c_str()), wrong) == 0) return {};
  const Hdf5Id attribute(Hdf5().Aopen(object, name.c_str(), H5P_DEFAULT), Hdf5().Aclose);
  const Hdf5Id space(Hdf5().Aget_space(attribute.get()), Hdf5().Sclose);
  const Hdf5Id type(Hdf5().Aget_type(attribute.get()), Hdf5().Tclose);
  const auto n =
      static_cast<uint64_t>(Checked(Hdf5().Sget_simple_extent_npoints(space.get()), wrong));
  const uint64_t size = Hdf5().Tget_size(type.get());
  if (Hdf5().Tget_class(type.get()) == H5T_FLOAT && n == 0) return {};  // Keras' empty list
  if (Hdf5().Tget_class(type.get()) != H5T_STRING || size == 0) {
    throw DataLoss("the attribute \"" + name + "\" holds no names");
  }
  if (n > kMostNames || size > kMostBytesOfNames / std::max<uint64_t>(n, 1)) {
    throw DataLoss("the attribute \"" + name + "\" is too large");
  }
  std::vector<std::string> texts;
  if (n == 0) return texts;
  if (Checked(Hdf5().Tis_variable_str(type.get()), wrong) > 0) {
    std::vector<char*> values(n, nullptr);
    Checked(Hdf5().Aread(attribute.get(), type.get(), values.data()), wrong);
    for (const char* const value : values) texts.emplace_back(value == nullptr ? "" : value);
    return texts;  // the texts' memory goes with the process
  }
  std::string values(n * size, '\0');
  Checked(Hdf5().Aread(attribute.get(), type.get(), values.data()), wrong);
  for (uint64_t i = 0; i < n; ++i) {
    const char* const value = values.data() + i * size;
    texts.emplace_back(value, strnlen(value, size));
  }
  return texts;
}

// Returns the names that Keras stored under `name`, or in parts under name0, name1 and so on.
std::vector<std::string> NamesOf(hid_t object, const std::string& name) {
  std::vector<std::string> all = TextsOf(object, name);
  for (int i = 0; all.size() < kMostNames; ++i) {
    const std::vector<std::string> part = TextsOf(object, name + std::to_string(i));
    if (part.empty()) break;
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Returns the name in safetensors of a dataset's type.
std::string DTypeOf(hid_t type, const std::string& name) {
  const H5T_class_t kind = Hdf5().Tget_class(type);
  const size_t size = Hdf5().Tget_size(type);
  if ((kind == H5T_FLOAT || kind == H5T_INTEGER) && Hdf5().Tget_order(type) == H5T_ORDER_BE) {
    throw UnsupportedHdf5("\"" + name + "\" has big-endian numbers, which Lathe does not read");
  }
  const bool is_plain =
      Hdf5().Tget_order(type) == H5T_ORDER_LE && Hdf5().Tget_precision(type) == 8 * size;
  if (kind == H5T_FLOAT && is_plain) {
    const size_t bias = Hdf5().Tget_ebias(type);
    if (size == 4 && bias == 127) return "F32";
    if (size == 8 && bias == 1023) return "F64";
    if (size == 2 && bias == 15) return "F16";
    if (size == 2 && bias == 127) return "BF16";
  }
  if (kind == H5T_INTEGER && is_plain && (size == 1 || size == 2 || size == 4 || size == 8)) {
    const bool is_signed = Hdf5().Tget_sign(type) == H5T_SGN_2;
    return (is_signed ? "I" : "U") + std::to_string(8 * size);
  }
  throw UnsupportedHdf5("\"" + name + "\" has a type that Lathe does not have");
}

// Returns whether the elements follow each other in the file, without a filter. Refuses elements
// in other files, and filters that HDF5 hasn't itself.
bool IsPlain(hid_t dataset, const std::string& name) {
  const Hdf5Id options(Hdf5().Dget_create_plist(dataset), Hdf5().Pclose);
  const std::string wrong = "\"" + name + "\" has a layout that can't be read";
  if (Checked(Hdf5().Pget_external_count(options.get()), wrong) != 0) {
    throw UnsupportedHdf5("\"" + name + "\" has its elements in another file");
  }
  const H5D_layout_t layout = Hdf5().Pget_layout(options.get());
  if (layout == H5D_VIRTUAL) {
    throw UnsupportedHdf5("\"" + name + "\" is virtual: it has its elements in other datasets");
  }
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED && layout != H5D_COMPACT) {
    throw DataLoss(wrong);
  }
  const int filters =
      layout == H5D_CHUNKED ? Checked(Hdf5().Pget_nfilters(options.get()), wrong) : 0;
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    size_t values = 0;
    const H5Z_filter_t filter = Hdf5().Pget_filter2(options.get(), static_cast<unsigned>(i), &flags,
                                                    &values, nullptr, 0, nullptr, &config);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE &&
        filter != H5Z_FILTER_FLETCHER32) {
      throw UnsupportedHdf5("\"" + name + "\" is packed by filter " + std::to_string(filter) +
                            (filter == kLzf ? " (LZF)" : "") + ", which Lathe does not read");
    }
  }
  return layout == H5D_CONTIGUOUS;
}

bool IsInChunks(hid_t dataset) {
  const Hdf5Id options(Hdf5().Dget_create_plist(dataset), Hdf5().Pclose);
  return Hdf5().Pget_layout(options.get()) == H5D_CHUNKED;
}

// Lists the chunks of an array.
void FindChunks(hid_t dataset, Hdf5Array& array) {
  const Hdf5Id options(Hdf5().Dget_create_plist(dataset), Hdf5().Pclose);
  const std::string wrong = "the chunks of \"" + array.name + "\" can't be found";
  const int filters = Checked(Hdf5().Pget_nfilters(options.get()), wrong);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    size_t values = 0;
    array.filters.push_back(static_cast<uint64_t>(
        Checked(Hdf5().Pget_filter2(options.get(), static_cast<unsigned>(i), &flags, &values,
                                    nullptr, 0, nullptr, &config),
                wrong)));
  }
  const auto rank = static_cast<int>(array.dims.size());
  std::vector<hsize_t> sizes(array.dims.size());
  if (Hdf5().Pget_chunk(options.get(), rank, sizes.data()) != rank) throw DataLoss(wrong);
  array.chunk_dims.assign(sizes.begin(), sizes.end());
  uint64_t count = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) throw DataLoss(wrong);
    const uint64_t blocks = array.dims[i] / sizes[i] + (array.dims[i] % sizes[i] != 0);
    if (__builtin_mul_overflow(count, blocks, &count) || count > kMostHdf5Chunks) {
      throw InvalidArgument(
          "\"" + array.name + "\" has more than " + std::to_string(kMostHdf5Chunks) + " chunks",
          "write it in larger chunks or without chunks, such as by h5repack");
    }
  }
  std::vector<hsize_t> begin(sizes.size(), 0);
  for (uint64_t n = 0; n < count; ++n) {
    unsigned mask = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    Checked(Hdf5().Dget_chunk_info_by_coord(dataset, begin.data(), &mask, &address, &size), wrong);
    if (address == HADDR_UNDEF || size == 0) {
      throw InvalidArgument("\"" + array.name + "\" has rows that were never written");
    }
    array.chunks.push_back({.offset = address, .size = size, .skipped = mask});
    for (size_t i = sizes.size(); i-- > 0;) {  // the next block, in row-major order
      begin[i] += sizes[i];
      if (begin[i] < array.dims[i]) break;
      begin[i] = 0;
    }
  }
}

// Reads arrays and copies those that can't be used where they are.
class Arrays {
 public:
  Arrays(std::string_view bytes, int copies, bool keeps_chunks = false)
      : bytes_(bytes), copies_(copies), keeps_chunks_(keeps_chunks) {}

  void Add(hid_t dataset, const std::string& name, bool has_model) {
    const Hdf5Id space(Hdf5().Dget_space(dataset), Hdf5().Sclose);
    const Hdf5Id type(Hdf5().Dget_type(dataset), Hdf5().Tclose);
    const int rank = Checked(Hdf5().Sget_simple_extent_ndims(space.get()), "a shape is damaged");
    if (rank > kMostRank) throw DataLoss("\"" + name + "\" has too many dimensions");
    Hdf5Array array = {.name = name, .has_model = has_model, .dtype = DTypeOf(type.get(), name)};
    array.dims.resize(static_cast<size_t>(rank));
    std::vector<hsize_t> dims(array.dims.size());
    Checked(Hdf5().Sget_simple_extent_dims(space.get(), dims.data(), nullptr),
            "a shape is damaged");
    std::copy(dims.begin(), dims.end(), array.dims.begin());
    const uint64_t item = Hdf5().Tget_size(type.get());
    uint64_t elements = 1;
    for (const uint64_t dim : array.dims) {
      if (__builtin_mul_overflow(elements, dim, &elements) || elements > kMostElements) {
        throw DataLoss("\"" + name + "\" is too large");
      }
    }
    const bool is_plain = IsPlain(dataset, name);
    if (keeps_chunks_ && IsInChunks(dataset)) {
      if (elements > 0) FindChunks(dataset, array);
      arrays_.push_back(std::move(array));
      return;
    }
    const haddr_t offset = is_plain ? Hdf5().Dget_offset(dataset) : HADDR_UNDEF;
    if (offset == HADDR_UNDEF) {
      Copy(dataset, type.get(), array, elements * item);
    } else {
      array.offset = offset;
      if (array.offset > bytes_.size() || elements * item > bytes_.size() - array.offset) {
        throw DataLoss("\"" + name + "\" ends behind the file's end");
      }
    }
    arrays_.push_back(std::move(array));
  }
  std::vector<Hdf5Array> Take() { return std::move(arrays_); }

 private:
  // Writes the elements to the copies, some rows at a time.
  void Copy(hid_t dataset, hid_t type, Hdf5Array& array, uint64_t size) {
    array.is_copied = true;
    array.offset = written_ = (written_ + kAlignment - 1) / kAlignment * kAlignment;
    if (size == 0) return;
    if (array.dims.empty()) return CopyRows(dataset, type, H5S_ALL, H5S_ALL, size, array.name);
    const uint64_t rows = array.dims[0], row = size / rows;
    if (row > 64 * kPiece) throw DataLoss("\"" + array.name + "\" is too large");
    const uint64_t most = std::max<uint64_t>(1, kPiece / row);
    std::vector<hsize_t> begin(array.dims.size(), 0), count(array.dims.begin(), array.dims.end());
    for (uint64_t at = 0; at < rows; at += most) {
      begin[0] = at;
      count[0] = std::min(most, rows - at);
      const Hdf5Id in_file(Hdf5().Dget_space(dataset), Hdf5().Sclose);
      Checked(Hdf5().Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, begin.data(), nullptr,
                                       count.data(), nullptr),
              "a shape is damaged");
      const Hdf5Id in_memory(
          Hdf5().Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
          Hdf5().Sclose);
      CopyRows(dataset, type, in_memory.get(), in_file.get(), row * count[0], array.name);
    }
  }
  void CopyRows(hid_t dataset, hid_t type, hid_t in_memory, hid_t in_file, uint64_t size,
                const std::string& name) {
    std::vector<char> values(size);
    Checked(Hdf5().Dread(dataset, type, in_memory, in_file, H5P_DEFAULT, values.data()),
            "the elements of \"" + name + "\" can't be read");
    for (uint64_t done = 0; done < size;) {
      const ssize_t n =
          pwrite(copies_, values.data() + done, size - done, static_cast<off_t>(written_ + done));
      if (n <= 0) throw DataLoss("\"" + name + "\" can't be copied");
      done += static_cast<uint64_t>(n);
    }
    written_ += size;
  }

  std::string_view bytes_;
  int copies_;
  bool keeps_chunks_;
  uint64_t written_ = 0;
  std::vector<Hdf5Array> arrays_;
};

}  // namespace

std::vector<Hdf5Array> FindHdf5Arrays(std::string_view bytes, int copies) {
  const Hdf5Id file = OpenHdf5InMemory(bytes);
  Arrays arrays(bytes, copies);
  const Hdf5Id root(Hdf5().Gopen2(file.get(), "/", H5P_DEFAULT), Hdf5().Gclose);
  for (const std::string& layer : NamesOf(root.get(), "layer_names")) {
    const Hdf5Id object = OpenHdf5Object(root.get(), layer);
    if (Hdf5().Iget_type(object.get()) == H5I_DATASET) {  // a shard: no groups of layers
      arrays.Add(object.get(), layer, /*has_model=*/false);
      continue;
    }
    for (const std::string& name : NamesOf(object.get(), "weight_names")) {
      const Hdf5Id dataset = OpenHdf5Object(object.get(), name);
      if (Hdf5().Iget_type(dataset.get()) != H5I_DATASET) {
        throw DataLoss("\"" + name + "\" is no array");
      }
      arrays.Add(dataset.get(), name, /*has_model=*/true);
    }
  }
  return arrays.Take();
}

namespace {

herr_t AddName(hid_t, const char* name, const H5O_info_t* info, void* names) {
  auto& all = *static_cast<std::vector<std::string>*>(names);
  constexpr size_t kMostListed = 10;
  if (info->type == H5O_TYPE_DATASET) all.push_back(name);
  return all.size() < kMostListed ? 0 : 1;
}

// Returns the error for a name that the file lacks.
Error HasNoArray(hid_t file, const std::string& name) {
  std::vector<std::string> names;
  Checked(Hdf5().Ovisit_by_name2(file, "/", H5_INDEX_NAME, H5_ITER_INC, AddName, &names,
                                 H5O_INFO_BASIC, H5P_DEFAULT),
          "its links are damaged");
  std::string list;
  for (const std::string& one : names) list += (list.empty() ? "" : ", ") + one;
  return InvalidArgument("has no dataset \"" + name + "\"; it has " +
                         (list.empty() ? "none" : list));
}

}  // namespace

std::vector<Hdf5Array> FindHdf5Columns(std::string_view bytes, int copies,
                                       const std::vector<std::string>& names) {
  const Hdf5Id file = OpenHdf5InMemory(bytes);
  Arrays arrays(bytes, copies, /*keeps_chunks=*/true);
  for (const std::string& name : names) {
    if (!ResolveHdf5Path(file.get(), name)) throw HasNoArray(file.get(), name);
    const Hdf5Id dataset = OpenHdf5Object(file.get(), name);
    if (Hdf5().Iget_type(dataset.get()) != H5I_DATASET)
      throw InvalidArgument("\"" + name + "\" is a group and no dataset");
    const Hdf5Id type(Hdf5().Dget_type(dataset.get()), Hdf5().Tclose);
    const H5T_class_t kind = Hdf5().Tget_class(type.get());
    if (kind != H5T_FLOAT && kind != H5T_INTEGER)
      throw InvalidArgument("dataset \"" + name + "\" does not hold numbers");
    arrays.Add(dataset.get(), name, /*has_model=*/false);
  }
  return arrays.Take();
}

}  // namespace lathe
