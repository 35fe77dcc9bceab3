#include "lathe/distributed/groups/collectives.h"

#include <absl/status/status.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <array>

#include "lathe/core/base/philox.h"
#include "lathe/core/ops/shaping/concat.h"

namespace lathe {
namespace {

// The dtype and the shape of a tensor, in a fixed number of bytes.
struct Signature {
  static constexpr int kMostDims = 8;
  int64_t dtype = -1, ndim = 0;
  std::array<int64_t, kMostDims> dims{};
  bool operator==(const Signature&) const = default;

  std::string Text() const {
    if (dtype < 0) return "no tensor";
    return std::string(ToString(static_cast<DType>(dtype))) + ' ' +
           ToString(Shape(dims.begin(), dims.begin() + ndim));
  }
};

Signature SignatureOf(const char* what, const Tensor& tensor) {
  Signature signature;
  if (!tensor.allocated()) return signature;
  Check(tensor.ndim() <= Signature::kMostDims, what, "at most ", Signature::kMostDims,
        " dimensions are possible but there are ", tensor.ndim());
  signature.dtype = static_cast<int64_t>(tensor.dtype());
  signature.ndim = tensor.ndim();
  std::copy(tensor.shape().begin(), tensor.shape().end(), signature.dims.begin());
  return signature;
}

// Returns the signatures of all ranks. Throws if they differ in more than dimension `free_dim`.
std::vector<Signature> GatherSignatures(ProcessGroup& group, const char* what, const Tensor& tensor,
                                        int free_dim = -1) {
  const std::vector<Signature> all = GatherValues(group, SignatureOf(what, tensor));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Signature other = all[rank];
    if (free_dim >= 0 && free_dim < all[0].ndim) {
      other.dims[static_cast<size_t>(free_dim)] = all[0].dims[static_cast<size_t>(free_dim)];
    }
    if (other == all[0] && other.dtype >= 0) continue;
    throw InvalidArgument("[" + std::string(what) + "] rank " + std::to_string(rank) + " has " +
                              all[rank].Text() +
                              (rank == 0 ? "" : " but rank 0 has " + all[0].Text()),
                          "give tensors of the same shape and dtype on all ranks");
  }
  return all;
}

std::span<std::byte> TensorBytes(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw_data()), static_cast<size_t>(tensor.bytes())};
}

int64_t Longest(const std::vector<Signature>& all, int dim) {
  const auto length = [&](const Signature& of) { return of.dims[static_cast<size_t>(dim)]; };
  return length(std::ranges::max(all, {}, length));
}

// Returns a new tensor on the host. Its dimension `dim` has the length `longest`.
Tensor Padded(const Tensor& tensor, int dim, int64_t longest, double pad_index, bool pad_first) {
  Shape shape = tensor.shape();
  shape[static_cast<size_t>(dim)] = longest - tensor.dim(dim);
  std::vector<Tensor> parts = {tensor.Detach().To(Device{}),
                               Tensor::Full(shape, pad_index, tensor.dtype())};
  if (pad_first) std::swap(parts[0], parts[1]);
  return Concat(parts, dim);
}

// Returns the name in "name<tab>value".
std::string NameOf(const std::string& line) { return line.substr(0, line.find('\t')); }

bool HasName(const std::vector<std::string>& lines, const std::string& line) {
  return std::ranges::count(lines, NameOf(line), NameOf) > 0;
}

// Returns a line for people to read. A long value is cut to the text around the first difference
// from the other line's value, between whole characters of UTF-8.
std::string Shown(const std::string& line, const std::string& other) {
  constexpr size_t kMost = 200, kBefore = 50;
  const std::string name = NameOf(line);
  const std::string value = line.substr(std::min(name.size() + 1, line.size()));
  if (value.size() <= kMost) return name + ' ' + value;
  const auto inside_character = [&](size_t at) {
    return at < value.size() && (static_cast<unsigned char>(value[at]) & 0xC0) == 0x80;
  };
  const auto parting = std::mismatch(line.begin(), line.end(), other.begin(), other.end()).first;
  const size_t common = static_cast<size_t>(parting - line.begin());
  size_t begin = common > name.size() + 1 + kBefore ? common - name.size() - 1 - kBefore : 0;
  while (inside_character(begin)) ++begin;
  size_t end = std::min(begin + kMost, value.size());
  while (inside_character(end)) ++end;
  return name + ' ' + (begin > 0 ? "..." : "") + value.substr(begin, end - begin) +
         (end < value.size() ? "..." : "");
}

}  // namespace

Tensor Gather(ProcessGroup& group, const Tensor& tensor) {
  const Tensor rows =
      tensor.defined() && tensor.ndim() == 0 ? tensor.Detach().Reshape({1}) : tensor;
  const std::vector<Signature> signatures = GatherSignatures(group, "gather", rows, 0);
  // Every rank sends as many rows as the longest has.
  const int64_t most = Longest(signatures, 0);
  Shape shape = rows.shape();
  shape[0] = most * group.size();
  const Tensor all = Tensor::Empty(shape, rows.dtype());
  group.AllGather(TensorBytes(Padded(rows, 0, most, 0, false)), TensorBytes(all));
  std::vector<Tensor> parts;
  for (const Signature& signature : signatures) {
    const int64_t begin = most * std::ssize(parts);
    parts.push_back(all.Slice(begin, begin + signature.dims[0]));
  }
  return Concat(parts, 0).To(rows.device());
}

Tensor Reduce(ProcessGroup& group, const Tensor& tensor, const std::string& reduction) {
  const bool mean = reduction == "mean";
  const ReduceOp op = reduction == "max"   ? ReduceOp::kMax
                      : reduction == "min" ? ReduceOp::kMin
                                           : ReduceOp::kSum;
  Check(mean || op != ReduceOp::kSum || reduction == "sum", "reduce",
        "the reduction must be sum, mean, max or min but is \"", reduction, "\"");
  GatherSignatures(group, "reduce", tensor);
  const DType dtype = tensor.dtype();
  Check(!mean || IsFloating(dtype), "reduce", "integers have no mean; reduce their sum");
  const DType wide = dtype == DType::kF64 ? DType::kF64
                     : IsFloating(dtype)  ? DType::kF32
                                          : DType::kI64;
  // A copy on the host, which the reduction may overwrite.
  const Tensor sum = (tensor.device().is_cpu() ? tensor.Clone() : tensor.To(Device{})).To(wide);
  const auto reduce = [&]<typename T>(std::span<T> values) {
    group.AllReduce(values, op);
    if (!mean) return;
    const double scale = 1.0 / group.size();
    for (T& v : values) v = static_cast<T>(static_cast<double>(v) * scale);
  };
  if (wide == DType::kF64) {
    reduce(sum.values<double>());
  } else if (wide == DType::kF32) {
    reduce(sum.values<float>());
  } else {
    reduce(sum.values<int64_t>());
  }
  return sum.To(dtype).To(tensor.device());
}

Tensor PadAcrossProcesses(ProcessGroup& group, const Tensor& tensor, int dim, double pad_index,
                          bool pad_first) {
  if (dim < 0) dim += tensor.ndim();
  const bool pads = dim >= 0 && dim < tensor.ndim();
  const std::vector<Signature> all =
      GatherSignatures(group, "pad_across_processes", tensor, pads ? dim : tensor.ndim());
  if (!pads) return tensor;
  return Padded(tensor, dim, Longest(all, dim), pad_index, pad_first).To(tensor.device());
}

void Broadcast(ProcessGroup& group, Tensor tensor, int root) {
  GatherSignatures(group, "broadcast", tensor);
  const Tensor on_host = tensor.To(Device{});
  group.Broadcast(TensorBytes(on_host), root);
  if (!tensor.device().is_cpu()) tensor.CopyFrom(on_host);
  tensor.impl()->storage->BumpVersion();
}

std::vector<std::string> GatherStrings(ProcessGroup& group, const std::string& mine) {
  const std::vector<int64_t> sizes = GatherValues(group, static_cast<int64_t>(mine.size()));
  const auto most = static_cast<size_t>(std::ranges::max(sizes));
  std::string padded = mine;
  padded.resize(most);
  std::string all(most * sizes.size(), '\0');
  group.AllGather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> result;
  for (size_t rank = 0; rank < sizes.size(); ++rank)
    result.push_back(all.substr(most * rank, static_cast<size_t>(sizes[rank])));
  return result;
}

void CheckSame(ProcessGroup& group, const char* what, const NamedValues& mine,
               const std::string& hint) {
  // Each value becomes one line. Names contain no tab, and line breaks in values become blanks.
  std::string text;
  for (const auto& [name, value] : mine) {
    text += absl::StrReplaceAll(name + '\t' + value, {{"\n", " "}}) + '\n';
  }
  const std::vector<uint64_t> digests = GatherValues(group, HashName(text));
  if (std::ranges::count(digests, digests[0]) == std::ssize(digests)) return;
  const std::vector<std::string> all = GatherStrings(group, text);
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n', absl::SkipEmpty());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string> other = absl::StrSplit(all[rank], '\n', absl::SkipEmpty());
    const auto [a, b] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    if (a == first.end() && b == other.end()) continue;
    // A line that only one of them has shifts all lines after it.
    const bool rank_has_it = b != other.end() && !HasName(first, *b);
    const bool zero_has_it = a != first.end() && !HasName(other, *a);
    const std::string of_zero = a == first.end() ? "" : *a, of_rank = b == other.end() ? "" : *b;
    throw Error(
        absl::StatusCode::kFailedPrecondition,
        "[" + std::string(what) + "] rank " + std::to_string(rank) + " has " +
            (zero_has_it && !rank_has_it ? "no " + NameOf(of_zero) : Shown(of_rank, of_zero)) +
            " but rank 0 has " + (rank_has_it ? "no " + NameOf(of_rank) : Shown(of_zero, of_rank)),
        hint);
  }
}

}  // namespace lathe
