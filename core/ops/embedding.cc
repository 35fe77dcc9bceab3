#include "lathe/core/ops/embedding.h"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/kernels/embedding_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/layer_norm.h"
#include "lathe/core/ops/scatter_add.h"

namespace lathe {
namespace {

// Returns element i, or `otherwise` if there are no elements.
int64_t At(const std::vector<int64_t>& rows, size_t i, int64_t otherwise) {
  return rows.empty() ? otherwise : rows[i];
}

// Returns a kernel's arguments for the tables from number `first` on, as many as one kernel takes.
EmbeddingArgs ArgsOf(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                     size_t first = 0) {
  EmbeddingArgs args = {.rows = ids[0].numel(),
                        .columns = tables[0].dim(1),
                        .num_tables = 0,
                        .accumulate = first > 0};
  for (size_t i = first; i < tables.size() && args.num_tables < EmbeddingArgs::kMaxTables; ++i) {
    args.tables[args.num_tables] = tables[i].data<float>();
    args.table_rows[args.num_tables] = tables[i].dim(0);
    args.ids[args.num_tables++] = ids[i].data<int32_t>();
  }
  return args;
}

// Gives the tables, the first inputs of a node, their gradients on a device. dy: [rows, n] float32.
void SetTableGrads(BackwardContext& context, const Tensor& dy, const std::vector<Tensor>& ids,
                   const std::vector<Tensor>& tables, const std::vector<int64_t>& padding_rows) {
  for (size_t i = 0; i < tables.size(); ++i) {
    if (!context.NeedsInputGrad(i)) continue;
    Tensor grad = context.LeafGrad(i);
    const bool own = !grad.defined();
    if (own) grad = Tensor::Zeros(tables[i].shape(), DType::kF32, tables[i].device());
    ScatterAddRowsOnDevice(grad, dy, ids[i], At(padding_rows, i, -1));
    if (own) context.SetGrad(i, grad);
  }
}

// Computes EmbeddingSum on a device, where the ids lie, too.
Tensor SumOnDevice(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                   const std::vector<int64_t>& padding_rows) {
  const AllocationTag allocation_tag = AllocationTag::Op("embedding");
  const Shape shape = {ids[0].numel(), tables[0].dim(1)};
  Tensor y = Tensor::Empty(shape, DType::kF32, tables[0].device());
  for (size_t first = 0; first < tables.size(); first += EmbeddingArgs::kMaxTables) {
    DeviceKernels<EmbeddingKernels>().forward(y.data<float>(), ArgsOf(ids, tables, first));
  }
  return Record("embedding", y, tables, {}, [=](BackwardContext& context) {
    SetTableGrads(context, context.grad_output(), ids, tables, padding_rows);
  });
}

// Checks the arguments of the look-up ops. Returns the ids on the tables' device, or nothing if
// that is the host.
std::vector<Tensor> CheckedIds(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                               const std::vector<int64_t>& padding_rows) {
  Check(!tables.empty() && ids.size() == tables.size(), "embedding",
        "expected one array of ids for each table but got ", ids.size(), " arrays for ",
        tables.size(), " tables");
  Check(padding_rows.empty() || padding_rows.size() == tables.size(), "embedding",
        "expected one padding row for each table, or none, but got ", padding_rows.size(), " for ",
        tables.size(), " tables");
  for (size_t i = 0; i < tables.size(); ++i) {
    Check(tables[i].ndim() == 2, "embedding", "table ", i, " must have shape [R, C] but has ",
          tables[i].shape());
    Check(ids[i].dtype() == DType::kI32, "embedding", "ids of table ", i, " must be int32 but are ",
          ToString(ids[i].dtype()));
  }
  const int64_t rows = ids[0].numel(), n = tables[0].dim(1);
  const Device device = tables[0].device();
  std::vector<Tensor> on_device;
  for (size_t i = 0; i < ids.size(); ++i) {
    Check(ids[i].numel() == rows && tables[i].dim(1) == n, "embedding", "table ", i, " of shape ",
          tables[i].shape(), " and ids of shape ", ids[i].shape(),
          " don't fit the shapes of table 0 and its ids");
    CheckSameDevice("embedding", device, {tables[i]});
    if (ids[i].device().is_cpu()) {
      CheckEmbeddingIds(ids[i], tables[i].dim(0), i);
    } else {
      CheckSameDevice("embedding", device, {ids[i]});
    }
    if (!device.is_cpu()) on_device.push_back(ids[i].To(device));
  }
  return on_device;
}

// Computes EmbeddingSum on the host.
Tensor SumOnHost(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                 const std::vector<int64_t>& padding_rows) {
  const int64_t rows = ids[0].numel(), n = tables[0].dim(1);
  std::vector<const int32_t*> index;
  for (const Tensor& i : ids) index.push_back(i.data<int32_t>());
  return DispatchFloat(tables[0].dtype(), "embedding", [&](auto tag) {
    using T = decltype(tag);
    Tensor y = Tensor::Empty({rows, n}, tables[0].dtype());
    T* out = y.data<T>();
    std::vector<const T*> values;
    for (const Tensor& table : tables) values.push_back(table.data<T>());
#pragma omp parallel for schedule(static) if (rows * n > kParallelSize)
    for (int64_t r = 0; r < rows; ++r) {
      T* row = out + r * n;
      std::copy_n(values[0] + index[0][r] * n, n, row);
      for (size_t i = 1; i < values.size(); ++i) {
        const T* from = values[i] + index[i][r] * n;
        for (int64_t c = 0; c < n; ++c) row[c] += from[c];
      }
    }
    return Record("embedding", y, tables, {}, [=](BackwardContext& context) {
      const T* dy = context.grad_output().template data<T>();
      for (size_t i = 0; i < tables.size(); ++i) {
        if (!context.NeedsInputGrad(i)) continue;
        Tensor grad = context.LeafGradRows(i, ids[i].values<int32_t>());
        const bool own = !grad.defined();
        if (own) grad = Tensor::Zeros(tables[i].shape(), tables[i].dtype());
        T* g = grad.data<T>();
        const int32_t* at = ids[i].data<int32_t>();
        const int64_t padding = At(padding_rows, i, -1);
        // The threads divide the columns, not the rows. So the order of each sum does not depend on
        // the number of threads.
        const int64_t share = DivideUp(n, omp_get_max_threads());
        const int64_t block = std::max<int64_t>(RoundUp(share, 16), 16);
#pragma omp parallel for schedule(static) if (rows * n > kParallelSize)
        for (int64_t begin = 0; begin < n; begin += block) {
          const int64_t end = std::min(begin + block, n);
          for (int64_t r = 0; r < rows; ++r) {
            if (at[r] == padding) continue;
            T* to = g + at[r] * n;
            for (int64_t c = begin; c < end; ++c) to[c] += dy[r * n + c];
          }
        }
        if (own) context.SetGrad(i, grad);
      }
    });
  });
}

}  // namespace

void CheckEmbeddingIds(const Tensor& ids, int64_t table_rows, size_t table) {
  const int32_t* index = ids.data<int32_t>();
  for (int64_t r = 0; r < ids.numel(); ++r) {
    Check(index[r] >= 0 && index[r] < table_rows, "embedding", "id ", index[r], " at row ", r,
          " of table ", table, " is outside [0, ", table_rows, ")");
  }
}

Tensor EmbeddingSum(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                    const std::vector<int64_t>& padding_rows) {
  const std::vector<Tensor> on_device = CheckedIds(ids, tables, padding_rows);
  if (!tables[0].device().is_cpu()) {
    return SumOnDevice(on_device, tables, padding_rows);
  }
  return SumOnHost(ids, tables, padding_rows);
}

Tensor EmbeddingLayerNormComposed(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                                  const std::vector<int64_t>& padding_rows, const Tensor& weight,
                                  const Tensor& bias, double eps, const DropoutSpec& dropout,
                                  DType dtype) {
  const Tensor sum = EmbeddingSum(ids, tables, padding_rows);
  return Cast(Dropout(LayerNorm(sum, weight, bias, eps), dropout), dtype);
}

namespace {

// Checks what the layer norm of rows of n columns takes and returns.
void CheckNorm(const char* op, int64_t n, Device device, const Tensor& weight, const Tensor& bias,
               DType dtype) {
  Check(n >= 1 && n <= 32768, op, "tables must have 1 to 32768 columns but have ", n);
  Check(weight.shape() == Shape({n}) && (!bias.defined() || bias.shape() == Shape({n})), op,
        "weight and bias must have shape [", n, "] but have ", weight.shape(), " and ",
        bias.defined() ? bias.shape() : Shape());
  CheckSameDevice(op, device, {weight, bias});
  Check(dtype != DType::kF64 && IsFloating(dtype), op,
        "activations must be float32, bfloat16 or float16 but are ", ToString(dtype));
}

}  // namespace

Tensor EmbeddingLayerNorm(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                          const std::vector<int64_t>& padding_rows, const Tensor& weight,
                          const Tensor& bias, double eps, const DropoutSpec& dropout, DType dtype) {
  constexpr const char* kOp = "embedding_layer_norm";
  Check(!tables.empty(), kOp, "expected at least one table but got none");
  const Device device = tables[0].device();
  if (device.is_cpu() || std::ssize(tables) > EmbeddingArgs::kMaxTables) {
    return EmbeddingLayerNormComposed(ids, tables, padding_rows, weight, bias, eps, dropout, dtype);
  }
  const AllocationTag allocation_tag = AllocationTag::Op(kOp);
  const std::vector<Tensor> there = CheckedIds(ids, tables, padding_rows);
  const int64_t rows = ids[0].numel(), n = tables[0].dim(1);
  CheckNorm(kOp, n, device, weight, bias, dtype);
  const cpu::LayerNormArgs norm = {rows, n, eps, MaskOf(dropout, kOp, rows, device)};
  const Tensor y = Tensor::Empty({rows, n}, dtype, device);
  const Tensor mean = Tensor::Empty({rows}, DType::kF32, device);
  const Tensor rstd = Tensor::Empty({rows}, DType::kF32, device);
  const Tensor added = bias.defined() ? bias : Tensor::Zeros({n}, DType::kF32, device);
  const EmbeddingKernels& kernels = DeviceKernels<EmbeddingKernels>();
  kernels.norm_forward(y.raw_data(), dtype, mean.data<float>(), rstd.data<float>(),
                       weight.data<float>(), added.data<float>(), ArgsOf(there, tables), norm);
  std::vector<Tensor> inputs = tables, saved = tables;
  inputs.insert(inputs.end(), {weight, bias});
  saved.push_back(weight);
  // The capture of the dropout's arrays keeps alive what `norm` points to.
  const auto backward = [=, &kernels, weight = weight.Detach(),
                         kept = dropout](BackwardContext& context) {
    const size_t k = tables.size();
    bool table_needs = false;
    for (size_t i = 0; i < k; ++i) table_needs = table_needs || context.NeedsInputGrad(i);
    const bool norm_needs = context.NeedsInputGrad(k) || context.NeedsInputGrad(k + 1);
    // Returns where to add input i's gradient, [n] float32: the leaf's buffer, or zeros that become
    // the gradient.
    const auto sums_of = [&](size_t i) {
      const Tensor grad = context.LeafGrad(i);
      return grad.defined() ? grad : Tensor::Zeros({n}, DType::kF32, device);
    };
    Tensor dz, dw, db;
    if (table_needs) dz = Tensor::Empty({rows, n}, DType::kF32, device);
    if (norm_needs) dw = sums_of(k), db = sums_of(k + 1);
    const int64_t chunks = DeviceKernels<cpu::LayerNormKernels>().chunks(rows, n);
    const Tensor partial = Tensor::Empty({chunks, 2 * n}, DType::kF32, device);
    const auto data = [](const Tensor& x) { return x.defined() ? x.data<float>() : nullptr; };
    kernels.norm_backward(data(dz), data(dw), data(db), partial.data<float>(),
                          context.grad_output().raw_data(), dtype, mean.data<float>(),
                          rstd.data<float>(), weight.data<float>(), ArgsOf(there, tables), norm);
    if (table_needs) SetTableGrads(context, dz, there, tables, padding_rows);
    if (norm_needs && !context.LeafGrad(k).defined()) context.SetGrad(k, dw);
    if (norm_needs && context.NeedsInputGrad(k + 1) && !context.LeafGrad(k + 1).defined()) {
      context.SetGrad(k + 1, db);
    }
  };
  return Record(kOp, y, std::move(inputs), std::move(saved), backward);
}

}  // namespace lathe
