#include "lathe/core/checkpoint/state_file.h"

#include <absl/status/status.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/fletcher32.h"
#include "lathe/core/checkpoint/hdf5_session.h"
#include "lathe/core/checkpoint/libraries.h"
#include "lathe/core/checkpoint/non_finite.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

// H5F_ACC_RDONLY, whose macro calls a function of the library.
constexpr unsigned int kReadOnly = 0;
constexpr char kNonFinite[] = "non_finite";
constexpr hsize_t kChunkElements = 1 << 16;  // 256 KiB of float32

// --- writing ---

hid_t TypeOf(DType dtype) {
  Check(dtype == DType::kF32 || dtype == DType::kI64, "state_file",
        "tensors must be float32 or int64");
  return dtype == DType::kF32 ? Hdf5().native_float : Hdf5().native_int64;
}

// Cuts a dataset of these dimensions into chunks of whole rows, or of parts of a row.
std::vector<hsize_t> ChunkOf(const std::vector<hsize_t>& dims) {
  std::vector<hsize_t> chunk = dims;
  hsize_t elements = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    chunk[i] = std::min(dims[i], std::max<hsize_t>(1, kChunkElements / elements));
    elements *= chunk[i];
  }
  return chunk;
}

// Writes the data as chunks of this size, each with its checksum behind it. ChunkOf makes chunks
// whose elements lie side by side in the data. HDF5's own filter does the same in twice the time:
// it allocates and frees the memory of each chunk.
void WriteChunks(const Hdf5Session& session, hid_t dataset, const std::vector<hsize_t>& dims,
                 const std::vector<hsize_t>& chunk, const char* data, size_t element_size) {
  const size_t chunk_bytes =
      element_size * std::accumulate(chunk.begin(), chunk.end(), size_t{1}, std::multiplies<>());
  std::vector<char> buffer(chunk_bytes + sizeof(uint32_t));
  std::vector<hsize_t> at(dims.size());
  for (;;) {
    // The chunks at the ends of dimensions are not full.
    size_t bytes = element_size;
    for (size_t i = 0; i < dims.size(); ++i) bytes *= std::min(chunk[i], dims[i] - at[i]);
    std::memcpy(buffer.data(), data, bytes);
    std::memset(buffer.data() + bytes, 0, chunk_bytes - bytes);
    data += bytes;
    const uint32_t checksum = Fletcher32(buffer.data(), chunk_bytes);
    std::memcpy(buffer.data() + chunk_bytes, &checksum, sizeof checksum);
    session.Checked(
        Hdf5().Dwrite_chunk(dataset, H5P_DEFAULT, 0, at.data(), buffer.size(), buffer.data()));
    size_t i = dims.size();
    while (i > 0 && (at[i - 1] += chunk[i - 1]) >= dims[i - 1]) at[--i] = 0;
    if (i == 0) return;
  }
}

void WriteDataset(const Hdf5Session& session, hid_t parent, const std::string& name, hid_t type,
                  const std::vector<hsize_t>& dims, const void* data,
                  const std::vector<int64_t>& shape) {
  const Hdf5Handle space = session.Own(
      Hdf5().Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), Hdf5().Sclose);
  const Hdf5Handle options = session.Own(Hdf5().Pcreate(Hdf5().dataset_creation), Hdf5().Pclose);
  session.Checked(Hdf5().Pset_obj_track_times(options.get(), false));
  std::vector<hsize_t> chunk;  // none if the dataset is empty
  if (std::find(dims.begin(), dims.end(), hsize_t{0}) == dims.end()) {
    chunk = ChunkOf(dims);
    session.Checked(Hdf5().Pset_chunk(options.get(), static_cast<int>(chunk.size()), chunk.data()));
    session.Checked(Hdf5().Pset_fletcher32(options.get()));
  }
  const Hdf5Handle links = session.Own(Hdf5().Pcreate(Hdf5().link_creation), Hdf5().Pclose);
  session.Checked(Hdf5().Pset_create_intermediate_group(links.get(), 1));
  Hdf5Handle dataset = session.Own(Hdf5().Dcreate2(parent, name.c_str(), type, space.get(),
                                                   links.get(), options.get(), H5P_DEFAULT),
                                   Hdf5().Dclose);
  if (!shape.empty()) {
    const hsize_t rank = shape.size();
    const Hdf5Handle of_shape =
        session.Own(Hdf5().Screate_simple(1, &rank, nullptr), Hdf5().Sclose);
    Hdf5Handle attribute = session.Own(Hdf5().Acreate2(dataset.get(), "shape", Hdf5().native_int64,
                                                       of_shape.get(), H5P_DEFAULT, H5P_DEFAULT),
                                       Hdf5().Aclose);
    session.Checked(Hdf5().Awrite(attribute.get(), Hdf5().native_int64, shape.data()));
    if (!attribute.Release()) session.Fail();
  }
  if (!chunk.empty()) {
    WriteChunks(session, dataset.get(), dims, chunk, static_cast<const char*>(data),
                Hdf5().Tget_size(type));
  }
  if (!dataset.Release()) session.Fail();
}

// Throws unless a state's values are an object, and the names of its tensors come back from HDF5 as
// they are. There, "/" parts the names of groups, "." is a group itself, and a zero ends a name.
void CheckNames(const StateDict& state, const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    throw FileError(absl::StatusCode::kInvalidArgument, path, what,
                    "mend what StateDict() returns");
  };
  if (!state.values.is_object() && !state.values.is_null()) {
    refuse(std::string("the values of a state must be a JSON object but are of type ") +
           state.values.type_name());
  }
  for (const StateTensor& tensor : state.tensors) {
    const std::vector<std::string> parts = absl::StrSplit(tensor.name, '/');
    const auto is_bad = [](const std::string& part) { return part.empty() || part == "."; };
    if (std::any_of(parts.begin(), parts.end(), is_bad) ||
        tensor.name.find('\0') != std::string::npos) {
      refuse("a tensor of the state has the name " +
             nlohmann::json(tensor.name)
                 .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
             ", which a file can't keep");
    }
  }
}

// Returns the values as JSON.
std::string TextOf(const nlohmann::json& values, const std::string& path) {
  const auto fails = [](const nlohmann::json& value) -> std::optional<std::string> {
    try {
      static_cast<void>(value.dump());
      return std::nullopt;
    } catch (const nlohmann::json::exception& e) {
      return WithoutTag(e.what());
    }
  };
  for (const auto& [key, value] : values.items()) {
    std::optional<std::string> problem = fails(key);
    if (!problem) problem = fails(value);
    if (!problem) continue;
    const std::string shown =
        nlohmann::json(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    throw FileError(absl::StatusCode::kInvalidArgument, path,
                    shown + " of the state can't be written: " + *problem);
  }
  std::string text = values.dump();
  if (const std::optional<JsonFlaw> flaw = FindJsonFlaw(text))
    throw FileError(absl::StatusCode::kInvalidArgument, path, flaw->problem, flaw->hint);
  return text;
}

void WriteText(const Hdf5Session& session, hid_t file, const char* name, const std::string& text) {
  WriteDataset(session, file, name, Hdf5().native_uint8, {text.size()}, text.data(), {});
}

void WriteTensor(const Hdf5Session& session, hid_t file, const StateTensor& tensor) {
  const Tensor on_host = tensor.values.To(Device{});
  std::string name = "tensors/" + tensor.name;
  std::vector<hsize_t> dims;
  std::vector<int64_t> shape;
  if (tensor.is_whole()) {
    for (const int64_t dim : tensor.shape) dims.push_back(static_cast<hsize_t>(dim));
    if (dims.empty()) dims = {1}, shape = {-1};  // a scalar, which can't have chunks
  } else {
    name += "@" + std::to_string(tensor.begin);
    dims = {static_cast<hsize_t>(on_host.numel())};
    shape.assign(tensor.shape.begin(), tensor.shape.end());
  }
  WriteDataset(session, file, name, TypeOf(on_host.dtype()), dims, on_host.raw_data(), shape);
}

// --- reading ---

std::vector<hsize_t> DimsOf(const Hdf5Session& session, hid_t dataset) {
  const Hdf5Handle space = session.Own(Hdf5().Dget_space(dataset), Hdf5().Sclose);
  const int rank = session.Checked(Hdf5().Sget_simple_extent_ndims(space.get()));
  std::vector<hsize_t> dims(static_cast<size_t>(rank));
  session.Checked(Hdf5().Sget_simple_extent_dims(space.get(), dims.data(), nullptr));
  return dims;
}

// Returns the JSON object whose text is the dataset's bytes.
nlohmann::json ReadObject(const Hdf5Session& session, hid_t file, const std::string& name,
                          const std::string& path) {
  const Hdf5Handle dataset =
      session.Own(Hdf5().Dopen2(file, name.c_str(), H5P_DEFAULT), Hdf5().Dclose);
  const std::vector<hsize_t> dims = DimsOf(session, dataset.get());
  if (dims.size() != 1 || dims[0] > hsize_t{1} << 30) throw session.Broken("\"" + name + "\"");
  std::string text(dims[0], '\0');
  session.Checked(
      Hdf5().Dread(dataset.get(), Hdf5().native_uint8, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()));
  CheckJsonNesting(text, path);
  nlohmann::json object = ParseJsonOrDiscard(text);
  if (!object.is_object()) throw session.Broken("\"" + name + "\" is no JSON object");
  return object;
}

// Returns the attribute "shape"; empty if there is none.
std::vector<int64_t> ShapeAttribute(const Hdf5Session& session, hid_t dataset) {
  if (session.Checked(Hdf5().Aexists(dataset, "shape")) == 0) return {};
  const Hdf5Handle attribute =
      session.Own(Hdf5().Aopen(dataset, "shape", H5P_DEFAULT), Hdf5().Aclose);
  const Hdf5Handle space = session.Own(Hdf5().Aget_space(attribute.get()), Hdf5().Sclose);
  const hssize_t n = session.Checked(Hdf5().Sget_simple_extent_npoints(space.get()));
  if (n > 16) throw session.Broken("a tensor has " + std::to_string(n) + " dimensions");
  std::vector<int64_t> shape(static_cast<size_t>(n));
  session.Checked(Hdf5().Aread(attribute.get(), Hdf5().native_int64, shape.data()));
  return shape;
}

DType DTypeOf(const Hdf5Session& session, hid_t dataset) {
  const Hdf5Handle type = session.Own(Hdf5().Dget_type(dataset), Hdf5().Tclose);
  const H5T_class_t kind = Hdf5().Tget_class(type.get());
  if (kind == H5T_FLOAT && Hdf5().Tget_size(type.get()) == 4) return DType::kF32;
  if (kind == H5T_INTEGER && Hdf5().Tget_size(type.get()) == 8) return DType::kI64;
  throw session.Broken("a tensor is neither float32 nor int64");
}

// Returns the number of elements of a tensor of these sizes. Throws for more than a file can hold.
int64_t CountElements(const Hdf5Session& session, const std::string& name,
                      const std::vector<int64_t>& sizes) {
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements) || elements > kMost)
      throw session.Broken("\"" + name + "\" has an impossible shape");
  }
  return elements;
}

StateTensor ReadTensor(const Hdf5Session& session, hid_t tensors, std::string name) {
  const Hdf5Handle dataset =
      session.Own(Hdf5().Dopen2(tensors, name.c_str(), H5P_DEFAULT), Hdf5().Dclose);
  std::vector<int64_t> read;
  for (const hsize_t dim : DimsOf(session, dataset.get())) {
    if (dim > hsize_t{1} << 40) throw session.Broken("\"" + name + "\" is too large");
    read.push_back(static_cast<int64_t>(dim));
  }
  const int64_t elements = CountElements(session, name, read);
  std::vector<int64_t> whole = ShapeAttribute(session, dataset.get());
  int64_t begin = 0;
  if (whole.empty()) {
    whole = read;
  } else if (whole == std::vector<int64_t>{-1} && elements == 1) {
    whole = read = {};
  } else {
    const size_t at = name.rfind('@');
    if (at == std::string::npos) throw session.Broken("\"" + name + "\" is no part");
    begin = std::strtoll(name.c_str() + at + 1, nullptr, 10);
    name.resize(at);
  }
  const Shape shape(whole.begin(), whole.end());
  const int64_t most = CountElements(session, name, whole);
  if (begin < 0 || begin > most || elements > most - begin)
    throw session.Broken("\"" + name + "\" has elements outside of its shape");
  const DType dtype = DTypeOf(session, dataset.get());
  const Tensor values = Tensor::Empty(Shape(read.begin(), read.end()), dtype);
  session.Checked(
      Hdf5().Dread(dataset.get(), TypeOf(dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.raw_data()));
  return {std::move(name), values, shape, begin};
}

herr_t AddDataset(hid_t, const char* name, const H5O_info_t* info, void* names) {
  if (info->type == H5O_TYPE_DATASET)
    static_cast<std::vector<std::string>*>(names)->push_back(name);
  return 0;
}

}  // namespace

void WriteStateFile(const std::string& path, const StateDict& state) {
  CheckNames(state, path);
  const std::string values = state.values.is_null() ? "{}" : TextOf(state.values, path);
  const nlohmann::json non_finite = NonFiniteNumbers(state.values);
  const Hdf5Session session(path, /*writes=*/true);
  Hdf5Handle file = session.CreateFile(path);
  WriteText(session, file.get(), "values", values);
  if (!non_finite.empty()) WriteText(session, file.get(), kNonFinite, non_finite.dump());
  for (const StateTensor& tensor : state.tensors) WriteTensor(session, file.get(), tensor);
  session.CloseFile(file);
}

StateDict ReadStateFile(const std::string& path) {
  const Hdf5Session session(path, /*writes=*/false);
  const Hdf5Handle access = session.Own(Hdf5().Pcreate(Hdf5().file_access), Hdf5().Pclose);
  session.Checked(Hdf5().Pset_file_locking(access.get(), false, true));
  const Hdf5Handle file =
      session.Own(Hdf5().Fopen(path.c_str(), kReadOnly, access.get()), Hdf5().Fclose);
  StateDict state;
  state.values = ReadObject(session, file.get(), "values", path);
  if (session.Checked(Hdf5().Lexists(file.get(), kNonFinite, H5P_DEFAULT)) > 0) {
    RestoreNonFinite(ReadObject(session, file.get(), kNonFinite, path), state.values, path);
  }
  const htri_t has_tensors = session.Checked(Hdf5().Lexists(file.get(), "tensors", H5P_DEFAULT));
  if (has_tensors == 0) return state;
  const Hdf5Handle tensors =
      session.Own(Hdf5().Gopen2(file.get(), "tensors", H5P_DEFAULT), Hdf5().Gclose);
  std::vector<std::string> names;
  session.Checked(Hdf5().Ovisit_by_name2(file.get(), "tensors", H5_INDEX_NAME, H5_ITER_INC,
                                         AddDataset, &names, H5O_INFO_BASIC, H5P_DEFAULT));
  for (const std::string& name : names)
    state.tensors.push_back(ReadTensor(session, tensors.get(), name));
  return state;
}

}  // namespace lathe
