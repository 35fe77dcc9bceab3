#include "lathe/core/ops/embedding.h"

#include "lathe/core/autograd.h"

namespace lathe {

Tensor EmbeddingSum(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                    const std::vector<int64_t>& padding_rows) {
  Check(!tables.empty() && ids.size() == tables.size(), "embedding", ids.size(), " id arrays for ",
        tables.size(), " tables");
  Check(padding_rows.empty() || padding_rows.size() == tables.size(), "embedding",
        "one padding row for each table, or none");
  const int64_t rows = ids[0].numel(), n = tables[0].dim(1);
  std::vector<const int32_t*> index;
  for (size_t i = 0; i < ids.size(); ++i) {
    Check(ids[i].numel() == rows && tables[i].ndim() == 2 && tables[i].dim(1) == n, "embedding",
          "table ", i, " of shape ", tables[i].shape(), " and ids of shape ", ids[i].shape(),
          " don't fit the first ones");
    index.push_back(ids[i].data<int32_t>());
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t id = index[i][r];
      Check(id >= 0 && id < tables[i].dim(0), "embedding", "id ", id, " at row ", r, " of table ",
            i, " is outside [0, ", tables[i].dim(0), ")");
    }
  }
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
