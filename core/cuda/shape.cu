// Ops that move elements. ShapeKernels in core/kernels/shape_kernels.h describes them.
#include <algorithm>

#include "lathe/core/cuda/launch.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/shape_kernels.h"

namespace lathe::cuda {
namespace {

// Calls body(Unit{}) with the type to copy by: 16 bytes if all of `bytes` are multiples of 16, else
// an element. `bytes` has the addresses, strides and lengths, all multiples of `size`, which is 2
// or 4.
template <typename Body>
void WithUnit(int64_t size, std::initializer_list<int64_t> bytes, Body body) {
  if (std::all_of(bytes.begin(), bytes.end(), [](int64_t b) { return b % 16 == 0; })) {
    body(uint4{});
  } else if (size == 4) {
    body(uint32_t{});
  } else {
    body(uint16_t{});
  }
}
int64_t Address(const void* of) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(of)); }

template <typename Unit>
__global__ void CopyBlockKernel(const Unit* in, int64_t in_stride, Unit* out, int64_t out_stride,
                                int64_t rows, int64_t columns) {
  for (int64_t i = GlobalThread(); i < rows * columns; i += NumThreads()) {
    const int64_t row = i / columns, column = i % columns;
    out[row * out_stride + column] = in[row * in_stride + column];
  }
}

void CopyBlock(const void* in, int64_t in_stride, void* out, int64_t out_stride, int64_t rows,
               int64_t columns, int64_t size) {
  if (rows == 0 || columns == 0) return;
  WithUnit(size, {Address(in), Address(out), in_stride * size, out_stride * size, columns * size},
           [&](auto unit) {
             using Unit = decltype(unit);
             const int64_t n = static_cast<int64_t>(sizeof(Unit)) / size;
             LATHE_LAUNCH(CopyBlockKernel<Unit>, GridFor(rows * columns / n), kBlock, 0,
                          static_cast<const Unit*>(in), in_stride / n, static_cast<Unit*>(out),
                          out_stride / n, rows, columns / n);
           });
}

template <typename Unit, typename Index>
__global__ void GatherRowsKernel(const Unit* in, const Index* index, Unit* out, int64_t count,
                                 int64_t num_rows, int64_t columns) {
  Unit nan;
  memset(&nan, 0xff, sizeof(nan));  // all bits set: NaN in every floating type
  for (int64_t i = GlobalThread(); i < count * columns; i += NumThreads()) {
    const int64_t row = index[i / columns], column = i % columns;
    out[i] = row >= 0 && row < num_rows ? in[row * columns + column] : nan;
  }
}

void GatherRows(const void* in, const void* index, DType index_type, void* out, int64_t count,
                int64_t num_rows, int64_t columns, int64_t size) {
  if (count == 0 || columns == 0) return;
  const auto run = [&](auto of_index) {
    using Index = decltype(of_index);
    WithUnit(size, {Address(in), Address(out), columns * size}, [&](auto unit) {
      using Unit = decltype(unit);
      const int64_t units = columns * size / static_cast<int64_t>(sizeof(Unit));
      LATHE_LAUNCH((GatherRowsKernel<Unit, Index>), GridFor(count * units), kBlock, 0,
                   static_cast<const Unit*>(in), static_cast<const Index*>(index),
                   static_cast<Unit*>(out), count, num_rows, units);
    });
  };
  if (index_type == DType::kI32) return run(int32_t{});
  run(int64_t{});
}

// blockIdx.y is the matrix, and the blocks along x share its rows. A few blocks suffice, since
// there are few rows to clear.
template <typename Unit>
__global__ void ClearRowsKernel(ClearRowsArgs args, int64_t units) {
  Unit* const matrix = static_cast<Unit*>(args.matrices[blockIdx.y]);
  const int64_t begin = *args.first * units, end = args.rows * units;
  Unit zero;
  memset(&zero, 0, sizeof(zero));
  for (int64_t i = begin + GlobalThread(); i < end; i += NumThreads()) matrix[i] = zero;
}

void ClearRows(const ClearRowsArgs& args) {
  unsigned count = 0;
  while (count < ClearRowsArgs::kMaxMatrices && args.matrices[count] != nullptr) ++count;
  if (count == 0 || args.rows == 0 || args.row_bytes == 0) return;
  int64_t any = args.row_bytes;  // divisible by 16 if all addresses and lengths are
  for (unsigned i = 0; i < count; ++i) any |= Address(args.matrices[i]);
  constexpr unsigned kBlocks = 64;
  WithUnit(2, {any}, [&](auto unit) {
    using Unit = decltype(unit);
    LATHE_LAUNCH(ClearRowsKernel<Unit>, dim3(kBlocks, count), kBlock, 0, args,
                 args.row_bytes / static_cast<int64_t>(sizeof(Unit)));
  });
}

const ShapeKernels table = {CopyBlock, GatherRows, ClearRows};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
