#include "lathe/core/keras_files/tensorflow_names.h"

#include <algorithm>
#include <vector>

namespace lathe {
namespace {

void ReplaceAll(std::string& text, std::string_view old, std::string_view replacement) {
  for (size_t at = text.find(old); at != std::string::npos;
       at = text.find(old, at + replacement.size())) {
    text.replace(at, old.size(), replacement);
  }
}

}  // namespace

TorchName TorchNameOf(std::string_view variable, bool has_model) {
  std::string path(variable);
  ReplaceAll(path, ":0", "");
  ReplaceAll(path, "_._", "/");  // "layer_._0" is element 0 of a list
  std::vector<std::string> parts;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    if (end > at) parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  if (parts.empty()) return {};
  // "mlm___cls" is "cls". The first and the last part stay as they are.
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const size_t at = parts[i].rfind("___");
    if (at != std::string::npos) parts[i].erase(0, at + 3);
  }
  TorchName result;
  // Layers such as SeparableConv1D have two kernels.
  if (parts.back() == "depthwise_kernel" || parts.back() == "pointwise_kernel") {
    result.kind = parts.back()[0] == 'd' ? VariableKind::kDepthwiseKernel : VariableKind::kKernel;
    ReplaceAll(parts.back(), "_kernel", ".weight");
  } else if (parts.back() == "kernel") {
    result.kind = VariableKind::kKernel;
  }
  if (parts.back() == "kernel" || parts.back() == "embeddings" || parts.back() == "gamma") {
    parts.back() = "weight";
  } else if (parts.back() == "beta") {
    parts.back() = "bias";
  }
  for (size_t i = has_model && parts.size() > 1 ? 1 : 0; i < parts.size(); ++i) {
    result.name += (result.name.empty() ? "" : ".") + parts[i];
  }
  return result;
}

int TorchOrder(VariableKind kind, int rank, int i) {
  constexpr int kOf4[] = {3, 2, 0, 1};
  if (kind == VariableKind::kPlain) return i;
  if (kind == VariableKind::kDepthwiseKernel) return (i + 1) % rank;
  if (rank == 4) return kOf4[i];
  return rank == 2 || rank == 3 ? rank - 1 - i : i;
}

}  // namespace lathe
