#include "lathe/core/weight_files/stored_array.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace lathe {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements that are copied before pages are forgotten

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));  // the address may have any alignment
  return value;
}

template <typename From, typename To>
To ConvertFloat(From value) {
  if constexpr (std::is_arithmetic_v<From> &&
                (std::is_same_v<To, double> || !std::is_same_v<From, double>)) {
    return static_cast<To>(value);
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

// Some elements that follow each other in `out`, and lie at equal distances in the file.
struct Run {
  const char* in;   // the first element
  int64_t stride;   // in elements
  int64_t out = 0;  // the index of the first element
  int64_t size = 0;
};

template <typename From, typename To>
bool ConvertFloats(const Run& run, To* out) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(From));
  out += run.out;
  if (run.stride != 1) {
    for (int64_t i = 0; i < run.size; ++i) {
      out[i] = ConvertFloat<From, To>(Load<From>(run.in + i * run.stride * kSize));
    }
  } else if constexpr (std::is_same_v<From, To>) {
    std::memcpy(out, run.in, static_cast<size_t>(run.size * kSize));
  } else {
    for (int64_t i = 0; i < run.size; ++i) {
      out[i] = ConvertFloat<From, To>(Load<From>(run.in + i * kSize));
    }
  }
  return true;
}

// Returns false if a value does not fit.
template <typename From, typename To>
bool ConvertIntegers(const Run& run, To* out) {
  bool fits = true;
  out += run.out;
  for (int64_t i = 0; i < run.size; ++i) {
    const From value = Load<From>(run.in + i * run.stride * static_cast<int64_t>(sizeof(From)));
    if constexpr (std::is_same_v<To, bool>) {
      fits &= value == 0 || value == 1;
      out[i] = value != 0;
    } else {
      fits &= std::in_range<To>(value);
      out[i] = static_cast<To>(value);
    }
  }
  return fits;
}

// Calls `body(T{})` with the C++ type of an integer dtype of the file; BOOL counts as one. Returns
// false for other dtypes.
template <typename Body>
bool DispatchInteger(std::string_view dtype, Body&& body) {
  if (dtype == "BOOL" || dtype == "U8") return body(uint8_t{}), true;
  if (dtype == "I8") return body(int8_t{}), true;
  if (dtype == "I16") return body(int16_t{}), true;
  if (dtype == "U16") return body(uint16_t{}), true;
  if (dtype == "I32") return body(int32_t{}), true;
  if (dtype == "U32") return body(uint32_t{}), true;
  if (dtype == "I64") return body(int64_t{}), true;
  if (dtype == "U64") return body(uint64_t{}), true;
  return false;
}

template <typename Body>
bool DispatchFloating(std::string_view dtype, Body&& body) {
  if (dtype == "F32") return body(float{}), true;
  if (dtype == "BF16") return body(BFloat16{}), true;
  if (dtype == "F16") return body(Float16{}), true;
  if (dtype == "F64") return body(double{}), true;
  return false;
}

bool IsRowMajor(const StoredArray& array) {
  const std::vector<int64_t> row_major = RowMajorStrides(array.shape);
  for (size_t d = 0; d < array.strides.size(); ++d) {
    // Nothing follows from the stride of a dimension with a single index.
    if (array.shape[d] != 1 && array.strides[d] != row_major[d]) return false;
  }
  return true;
}

// Returns the byte behind the array's last one.
const char* EndOf(const StoredArray& array, int64_t item_size) {
  int64_t last = 0;
  const std::vector<int64_t> row_major = RowMajorStrides(array.shape);
  for (size_t d = 0; d < array.shape.size(); ++d) {
    if (array.shape[d] == 0) return array.data;
    last += (array.shape[d] - 1) * (array.strides.empty() ? row_major : array.strides)[d];
  }
  return array.data + (last + 1) * item_size;
}

// Returns the number of elements that one run of an array has at most.
int64_t RunSize(const StoredArray& array) {
  return IsRowMajor(array) ? kPiece : array.shape.back();
}

// Returns the run that begins with the element number `first`.
Run RunAt(const StoredArray& array, int64_t item_size, int64_t first) {
  if (IsRowMajor(array)) {
    return {.in = array.data + first * item_size,
            .stride = 1,
            .out = first,
            .size = std::min(kPiece, NumElements(array.shape) - first)};
  }
  int64_t offset = 0;
  int64_t rest = first / array.shape.back();
  for (size_t d = array.shape.size() - 1; d-- > 0;) {
    offset += rest % array.shape[d] * array.strides[d];
    rest /= array.shape[d];
  }
  return {.in = array.data + offset * item_size,
          .stride = array.strides.back(),
          .out = first,
          .size = array.shape.back()};
}

// Calls `copy` with runs that hold every element once, by several threads if there is something to
// compute. Returns whether it was always true. Pages that were copied are forgotten.
template <typename Copy>
bool ForEachRun(const StoredArray& array, int64_t item_size, bool is_plain, Copy&& copy) {
  const int64_t n = NumElements(array.shape);
  if (n == 0) return true;
  const int64_t size = RunSize(array), runs = (n + size - 1) / size;
  const bool is_row_major = IsRowMajor(array);
  bool ok = true;
#pragma omp parallel for schedule(static) reduction(&& : ok) if (!is_plain && n >= kPiece / 16)
  for (int64_t i = 0; i < runs; ++i) {
    const Run run = RunAt(array, item_size, i * size);
    ok = copy(run) && ok;
    if (is_row_major && array.memory != nullptr) {
      array.memory->ForgetPages(run.in, static_cast<size_t>(run.size * item_size));
    }
  }
  if (!is_row_major && array.memory != nullptr) {
    array.memory->ForgetPages(array.data,
                              static_cast<size_t>(EndOf(array, item_size) - array.data));
  }
  return ok;
}

}  // namespace

int64_t SizeOfElement(std::string_view dtype) {
  int64_t size = 0;
  const auto take = [&](auto value) { size = sizeof value; };
  if (!DispatchFloating(dtype, take)) DispatchInteger(dtype, take);
  return size;
}

void ReadStoredArray(const std::string& name, const StoredArray& array, Tensor& out) {
  const std::string where = array.file + ": tensor \"" + name + "\" ";
  if (array.shape != out.shape()) {
    throw InvalidArgument(where + "has shape " + ToString(array.shape) + " but " +
                          ToString(out.shape()) + " is wanted");
  }
  if (!out.device().is_cpu()) {
    Tensor read = Tensor::Empty(out.shape(), out.dtype());
    ReadStoredArray(name, array, read);
    return out.CopyFrom(read);
  }
  out.impl()->storage->BumpVersion();
  bool fits = true;
  const bool converted = DispatchAll(out.dtype(), [&](auto to) {
    using To = decltype(to);
    if constexpr (std::is_integral_v<To>) {
      return DispatchInteger(array.dtype, [&](auto from) {
        using From = decltype(from);
        fits = ForEachRun(array, sizeof(From), false, [values = out.data<To>()](const Run& run) {
          return ConvertIntegers<From, To>(run, values);
        });
      });
    } else {
      return DispatchFloating(array.dtype, [&](auto from) {
        using From = decltype(from);
        const bool is_plain = std::is_same_v<From, To> && IsRowMajor(array);
        ForEachRun(array, sizeof(From), is_plain, [values = out.data<To>()](const Run& run) {
          return ConvertFloats<From, To>(run, values);
        });
      });
    }
  });
  if (!converted) {
    throw InvalidArgument(
        where + "has dtype " + array.dtype + ", which can't be read as " + ToString(out.dtype()),
        "save the model's weights as float32, float16 or bfloat16");
  }
  if (!fits) {
    throw InvalidArgument(where + "has values that " + ToString(out.dtype()) + " can't hold");
  }
}

bool IsSensible(const Shape& shape) {
  constexpr int64_t kMost = int64_t{1} << 48;
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size < 0 || size > kMost / product) return false;
    if (size > 0) product *= size;
  }
  return true;
}

std::vector<int64_t> RowMajorStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::string Printable(std::string text) {
  for (char& c : text) {
    if ((c >= 0 && c < ' ') || c == 0x7f) c = '?';
  }
  return text;
}

Error BrokenWeights(const std::string& file, const std::string& what) {
  return DataLoss(file + ": " + Printable(what),
                  "the file is damaged or incomplete; download or save it again");
}

}  // namespace lathe
