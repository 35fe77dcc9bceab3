#include "lathe/core/ops/segment/token_positions.h"

#include <algorithm>
#include <span>

#include "lathe/core/kernels/token_positions_kernels.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {
namespace {

constexpr const char* kOp = "token_positions";

void CheckInputs(const Tensor& ids, const Tensor& positions, const Tensor& cu_seqlens) {
  const auto check = [](const Tensor& x, const char* name, const char* shape) {
    Check(x.dtype() == DType::kI32 && x.ndim() == 1, kOp, name, " must be int32 of shape ", shape,
          " but is ", ToString(x.dtype()), " of shape ", x.shape());
  };
  check(ids, "ids", "[T]");
  check(positions, "positions", "[T]");
  check(cu_seqlens, "cu_seqlens", "[B + 1]");
  Check(ids.numel() == positions.numel(), kOp, "ids of shape ", ids.shape(),
        " don't fit positions of shape ", positions.shape());
  Check(cu_seqlens.numel() >= 1, kOp, "cu_seqlens is empty; it must hold 0 and each end");
  CheckSameDevice(kOp, ids.device(), {positions, cu_seqlens});
  if (!ids.device().is_cpu()) return;
  const std::span<const int32_t> cu = cu_seqlens.values<int32_t>();
  Check(cu[0] == 0 && std::ranges::is_sorted(cu) && cu.back() <= ids.numel(), kOp,
        "cu_seqlens must run from 0 to at most ", ids.numel(), ", for ids of shape ", ids.shape(),
        ", and not decrease");
}

void Count(int32_t* y, const TokenPositionsArgs& args) {
  const int32_t first = args.padding_id + 1;
  std::transform(args.positions, args.positions + args.rows, y,
                 [=](int32_t position) { return first + position; });
  for (int64_t b = 0; b < args.batch; ++b) {
    int32_t padding_tokens = 0;
    for (int64_t t = args.cu_seqlens[b]; t < args.cu_seqlens[b + 1]; ++t) {
      const bool is_padding = args.ids[t] == args.padding_id;
      y[t] = is_padding ? args.padding_id : y[t] - padding_tokens;
      padding_tokens += is_padding ? 1 : 0;
    }
  }
}

}  // namespace

Tensor TokenPositions(const Tensor& ids, const Tensor& positions, const Tensor& cu_seqlens,
                      int32_t padding_id) {
  CheckInputs(ids, positions, cu_seqlens);
  const Device device = ids.device();
  const AllocationTag allocation_tag = AllocationTag::Op(kOp);
  const Tensor y = Tensor::Empty(ids.shape(), DType::kI32, device);
  const TokenPositionsArgs args = {.ids = ids.data<int32_t>(),
                                   .positions = positions.data<int32_t>(),
                                   .cu_seqlens = cu_seqlens.data<int32_t>(),
                                   .batch = cu_seqlens.numel() - 1,
                                   .rows = ids.numel(),
                                   .padding_id = padding_id};
  if (device.is_cpu()) {
    Count(y.data<int32_t>(), args);
  } else {
    DeviceKernels<TokenPositionsKernels>().positions(y.data<int32_t>(), args);
  }
  return y;
}

}  // namespace lathe
