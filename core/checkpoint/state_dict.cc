#include "lathe/core/checkpoint/state_dict.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lathe/core/base/allocation_tag.h"

namespace lathe {
namespace {

// Copies in pieces, because one thread alone doesn't use all of the memory's bandwidth.
void CopyBytes(char* to, const char* from, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{1} << 20;
#pragma omp parallel for schedule(static) if (bytes > kPiece)
  for (int64_t begin = 0; begin < bytes; begin += kPiece) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(std::min(kPiece, bytes - begin)));
  }
}

}  // namespace

void CopyState(const StateDict& from, StateDict& to) {
  const AllocationTag allocation_tag = AllocationTag::State("the copy for a checkpoint");
  std::vector<StateTensor> before = std::exchange(to.tensors, {});
  to.values = from.values;
  for (size_t i = 0; i < from.tensors.size(); ++i) {
    const StateTensor& tensor = from.tensors[i];
    Tensor copy;
    if (i < before.size() && before[i].values.numel() == tensor.values.numel() &&
        before[i].values.dtype() == tensor.values.dtype()) {
      copy = before[i].values.Reshape(tensor.values.shape());
    } else {
      if (i < before.size()) before[i].values = {};  // before more memory is taken
      copy = Tensor::Empty(tensor.values.shape(), tensor.values.dtype());
    }
    if (tensor.values.device().is_cpu()) {
      CopyBytes(static_cast<char*>(copy.raw_data()),
                static_cast<const char*>(tensor.values.raw_data()), copy.bytes());
    } else {
      copy.CopyFrom(tensor.values);
    }
    to.tensors.push_back({tensor.name, copy, tensor.shape, tensor.begin});
  }
}

}  // namespace lathe
