#include "lathe/core/ops/embedding.h"

#include <algorithm>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/row_sums.h"

namespace lathe {
namespace {

// ids: on the tables' device.
Tensor SumOnDevice(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                   const std::vector<int64_t>& padding_rows) {
  const int64_t rows = ids[0].numel(), n = tables[0].dim(1);
  Tensor y = Tensor::Empty({rows, n}, DType::kF32, tables[0].device());
  for (size_t first = 0; first < tables.size(); first += EmbeddingArgs::kMaxTables) {
    EmbeddingArgs args = {.rows = rows, .columns = n, .num_tables = 0, .accumulate = first > 0};
    for (size_t i = first; i < tables.size() && args.num_tables < EmbeddingArgs::kMaxTables; ++i) {
      args.tables[args.num_tables] = tables[i].data<float>();
      args.table_rows[args.num_tables] = tables[i].dim(0);
      args.ids[args.num_tables++] = ids[i].data<int32_t>();
    }
    DeviceKernels<EmbeddingKernels>().forward(y.data<float>(), args);
  }
  return Record("embedding", y, tables, {}, [=](BackwardContext& context) {
    for (size_t i = 0; i < tables.size(); ++i) {
      if (!context.Needs(i)) continue;
      Tensor grad = context.LeafGrad(i);
      const bool own = !grad.defined();
      if (own) grad = Tensor::Zeros(tables[i].shape(), DType::kF32, tables[i].device());
      AddRowsOnDevice(grad, context.grad_output(), ids[i],
                      padding_rows.empty() ? -1 : padding_rows[i]);
      if (own) context.SetGrad(i, grad);
    }
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
  Check(!tables.empty() && ids.size() == tables.size(), "embedding", ids.size(), " id arrays for ",
        tables.size(), " tables");
  Check(padding_rows.empty() || padding_rows.size() == tables.size(), "embedding",
        "one padding row for each table, or none");
  const int64_t rows = ids[0].numel(), n = tables[0].dim(1);
  const Device device = tables[0].device();
  std::vector<Tensor> on_device;
  std::vector<const int32_t*> index;
  for (size_t i = 0; i < ids.size(); ++i) {
    Check(ids[i].numel() == rows && tables[i].ndim() == 2 && tables[i].dim(1) == n, "embedding",
          "table ", i, " of shape ", tables[i].shape(), " and ids of shape ", ids[i].shape(),
          " don't fit the first ones");
    CheckSameDevice("embedding", device, {tables[i]});
    if (ids[i].device() == Device{}) {
      CheckEmbeddingIds(ids[i], tables[i].dim(0), i);
    } else {
      CheckSameDevice("embedding", device, {ids[i]});
    }
    index.push_back(ids[i].data<int32_t>());
    if (device != Device{}) on_device.push_back(ids[i].To(device));
  }
  if (device != Device{}) return SumOnDevice(on_device, tables, padding_rows);
  return DispatchFloat(tables[0].dtype(), "embedding", [&](auto tag) {
    using T = decltype(tag);
    Tensor y = Tensor::Empty({rows, n}, tables[0].dtype());
    T* out = y.data<T>();
    std::vector<const T*> values;
    for (const Tensor& table : tables) values.push_back(table.data<T>());
#pragma omp parallel for schedule(static)
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
        if (!context.Needs(i)) continue;
        Tensor grad = context.LeafGradRows(i, ids[i].values<int32_t>());
        const bool own = !grad.defined();
        if (own) grad = Tensor::Zeros(tables[i].shape(), tables[i].dtype());
        T* g = grad.data<T>();
        const int32_t* at = ids[i].data<int32_t>();
        const int64_t padding = padding_rows.empty() ? -1 : padding_rows[i];
        // Threads share columns, not rows: each sum has one order, whatever the number of threads.
        constexpr int64_t kBlock = 64;
#pragma omp parallel for schedule(static)
        for (int64_t begin = 0; begin < n; begin += kBlock) {
          const int64_t end = std::min(begin + kBlock, n);
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

}  // namespace lathe
