// Measures the general ops on the CPU, forward or backward, at sizes that the second-level cache
// does not hold.
//
//   tensor_ops              # a table: time, bytes a second, and the fraction of a large copy's
//   rate tensor_ops sum          # the ops whose names begin so tensor_ops --serve      # for
//   compare_ops.py: reads names of ops, and prints seconds
//
// Bytes are those that an op must move: it reads each input once and writes its result once.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/ops/ops.h"
#include "lathe/tests/benchmarks/ceilings.h"

namespace lathe {
namespace {

struct OpCase {
  const char* name;
  double bytes;
  std::function<void()> run;
};

// Numbers from 0 to `size` - 1 that look random.
Tensor Indices(const Shape& shape, int64_t size) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < NumElements(shape); ++i) {
    numbers.push_back(static_cast<int64_t>(static_cast<uint32_t>(i) * 2654435761u >> 8) % size);
  }
  return Tensor::FromVector(numbers, shape);
}

Tensor Leaf(const Tensor& x) {
  Tensor leaf = x.Detach();
  leaf.SetRequiresGrad(true);
  return leaf;
}

// Returns a run of f's backward pass, and of its forward pass, which comes before it.
std::function<void()> WithBackward(const Tensor& x, std::function<Tensor(const Tensor&)> f) {
  NoGradGuard no_grad;
  const Tensor dy = Filled<float>(f(x).shape());
  return [=] {
    // The gradient is not of a leaf, so that none is added up.
    const Tensor leaf = Leaf(x);
    Backward(f(Reshape(leaf, leaf.shape())), dy);
  };
}

// It is long because it is a table: one row for each op and shape.
std::vector<OpCase> Cases() {
  const int64_t rows = 832, columns = 3072, n = rows * columns;
  const Tensor x = Filled<float>({rows, columns}), y = Filled<float>({rows, columns});
  const Tensor positive = AddScalar(Abs(x), 0.1);
  const Tensor row = Filled<float>({columns}), column = Filled<float>({rows, 1});
  const Tensor cube = x.Reshape({32, 26, columns}), heads = x.Reshape({32, 26, 48, 64});
  const Tensor middle = Filled<float>({32, 1, columns});
  const Tensor tall = x.Reshape({39936, 64}), narrow = x.Reshape({319488, 8});
  const Tensor row_numbers = Indices({rows}, rows), column_numbers = Indices({columns}, columns);
  const Tensor one_column = Indices({39936, 1}, 64), numbers = Indices({rows, columns}, columns);
  const Tensor down = Indices({rows, columns}, rows), classes = Indices({39936}, 64);
  const Tensor mask = Less(x, y), sequences = x.Reshape({312, 128, 64});
  const double word = 4, all = word * static_cast<double>(n);
  const auto some = [&](int64_t count) { return word * static_cast<double>(count); };
  const Tensor grad_row = Filled<float>({rows});

  std::vector<OpCase> cases = {
      {"clone", 2 * all, [=] { x.Clone(); }},
      {"expand_row", all,
       [=] {
         Expand(row, {rows, columns});
       }},
      {"expand_column", all,
       [=] {
         Expand(column, {rows, columns});
       }},
      {"expand_middle", all,
       [=] {
         Expand(middle, {32, 26, columns});
       }},
      {"expand_narrow", all,
       [=, c = Filled<float>({319488, 1})] {
         Expand(c, {319488, 8});
       }},
      {"sum_to_row", all, [=] { SumToShape(x, {columns}); }},
      {"sum_to_column", all,
       [=] {
         SumToShape(x, {rows, 1});
       }},
      {"sum_to_middle", all,
       [=] {
         SumToShape(cube, {32, 1, columns});
       }},
      {"sum_to_one", all, [=] { SumToShape(x, {1}); }},
      {"sum_to_narrow", all,
       [=] {
         SumToShape(narrow, {319488, 1});
       }},
      {"sum_to_few", all, [=] { SumToShape(narrow, {8}); }},
      {"sum", all, [=] { Sum(x); }},
      {"mean", all, [=] { Mean(x); }},
      {"sum_last", all, [=] { SumLast(x); }},
      {"sum_last_backward", 2 * all, WithBackward(x, SumLast)},
      {"softmax", 2 * all, [=] { SoftmaxLast(x); }},
      {"softmax_narrow", 2 * all, [=] { SoftmaxLast(tall); }},
      {"log_softmax", 2 * all, [=] { LogSoftmaxLast(x); }},
      {"log_softmax_narrow", 2 * all, [=] { LogSoftmaxLast(narrow); }},
      {"softmax_backward", 5 * all, WithBackward(x, SoftmaxLast)},
      {"log_softmax_backward", 5 * all, WithBackward(x, LogSoftmaxLast)},
      {"variance_rows", all, [=] { Variance(x, {1}); }},
      {"variance_columns", all, [=] { Variance(x, {0}); }},
      {"variance_rows_backward", 3 * all,
       WithBackward(x, [](const Tensor& t) { return Variance(t, {1}); })},
      {"variance_columns_backward", 3 * all,
       WithBackward(x, [](const Tensor& t) { return Variance(t, {0}); })},
      {"max_rows", all, [=] { Max(x, 1); }},
      {"max_columns", all, [=] { Max(x, 0); }},
      {"max_narrow", all, [=] { Max(narrow, 1); }},
      {"max_all", all, [=] { Max(x); }},
      {"amax_middle", all, [=] { AMax(cube, {1}); }},
      {"argmax_rows", all, [=] { ArgMax(x, 1); }},
      {"max_rows_backward", 2 * all,
       WithBackward(x, [](const Tensor& t) { return Max(t, 1).values; })},
      {"max_columns_backward", 2 * all,
       WithBackward(x, [](const Tensor& t) { return Max(t, 0).values; })},
      {"amax_rows_backward", 3 * all,
       WithBackward(x, [](const Tensor& t) { return AMax(t, {1}); })},
      {"topk_rows", all, [=] { TopK(x, 5); }},
      {"topk_narrow", all, [=] { TopK(tall, 5); }},
      {"topk_columns", all, [=] { TopK(x, 5, 0); }},
      {"slice_columns", all, [=] { Slice(x, 1, 0, columns / 2); }},
      {"slice_one_column", some(39936), [=] { Slice(tall, 1, 5, 6); }},
      {"slice_step", some(n / 2 * 3), [=] { Slice(x, 1, 0, kToEnd, 2); }},
      {"slice_columns_backward", 3 * all / 2,
       WithBackward(x, [=](const Tensor& t) { return Slice(t, 1, 0, columns / 2); })},
      {"split_columns", 2 * all, [=] { Split(x, 768, 1); }},
      {"concat_rows", 4 * all,
       [=] {
         Concat({x, y}, 0);
       }},
      {"concat_columns", 4 * all,
       [=] {
         Concat({x, y}, 1);
       }},
      {"concat_narrow", 4 * all,
       [=] {
         Concat({narrow, narrow}, 1);
       }},
      {"stack_last", 4 * all,
       [=] {
         Stack({x, y}, -1);
       }},
      {"transpose", 2 * all, [=] { Transpose(x); }},
      {"permute_heads", 2 * all,
       [=] {
         Permute(heads, {0, 2, 1, 3});
       }},
      {"permute_last", 2 * all,
       [=] {
         Permute(heads, {0, 2, 3, 1});
       }},
      {"permute_reverse", 2 * all,
       [=] {
         Permute(heads, {3, 2, 1, 0});
       }},
      {"index_select_rows", 2 * all, [=] { IndexSelect(x, 0, row_numbers); }},
      {"index_select_columns", 2 * all, [=] { IndexSelect(x, 1, column_numbers); }},
      {"index_select_one", some(39936), [=, one = Indices({1}, 64)] { IndexSelect(tall, 1, one); }},
      {"index_select_rows_backward", 4 * all,
       WithBackward(x, [=](const Tensor& t) { return IndexSelect(t, 0, row_numbers); })},
      {"index_select_columns_backward", 4 * all,
       WithBackward(x, [=](const Tensor& t) { return IndexSelect(t, 1, column_numbers); })},
      {"gather_rows", 4 * all, [=] { Gather(x, 1, numbers); }},
      {"gather_columns", 4 * all, [=] { Gather(x, 0, down); }},
      {"gather_one_column", some(39936 * 4), [=] { Gather(tall, 1, one_column); }},
      {"gather_rows_backward", 8 * all,
       WithBackward(x, [=](const Tensor& t) { return Gather(t, 1, numbers); })},
      {"scatter_add_rows", 5 * all, [=] { ScatterAdd(x, 1, numbers, y); }},
      {"scatter_add_columns", 5 * all, [=] { ScatterAdd(x, 0, down, y); }},
      {"gather_table_rows", 2 * all,
       [=, chosen = Indices({39936}, 39936)] { GatherRows(tall, chosen); }},
      {"one_hot", 2 * all, [=] { OneHot(classes, 64); }},
      {"where", 13.0 / 4 * all, [=] { Where(mask, x, y); }},
      {"where_scalar", 9.0 / 4 * all, [=] { MaskedFill(x, mask, 0); }},
      {"where_row_mask", 2 * all, [=, m = Less(column, 0.0)] { MaskedFill(x, m, 0); }},
      {"less", 9.0 / 4 * all, [=] { Less(x, y); }},
      {"equal_number", 5.0 / 4 * all, [=] { Equal(x, 0.5); }},
      {"bool_to_float", 5.0 / 4 * all, [=] { mask.To(DType::kF32); }},
      {"int64_to_float", 3 * all, [=] { numbers.To(DType::kF32); }},
      {"float_to_double", 3 * all, [=] { x.To(DType::kF64); }},
      {"add", 3 * all, [=] { Add(x, y); }},
      {"add_row", 2 * all, [=] { Add(x, row); }},
      {"add_column", 2 * all, [=] { Add(x, column); }},
      {"add_middle", 2 * all, [=] { Add(cube, middle); }},
      {"add_narrow", 2 * all, [=, eight = Filled<float>({8})] { Add(narrow, eight); }},
      {"add_row_backward", 2 * all, WithBackward(row, [=](const Tensor& t) { return Add(x, t); })},
      {"mul", 3 * all, [=] { Mul(x, y); }},
      {"div", 3 * all, [=] { Div(x, positive); }},
      {"maximum", 3 * all, [=] { Maximum(x, y); }},
      {"scale", 2 * all, [=] { Scale(x, 2); }},
      {"abs", 2 * all, [=] { Abs(x); }},
      {"neg", 2 * all, [=] { Neg(x); }},
      {"clamp", 2 * all,
       [=] {
         Clamp(x, {-0.5, 0.5});
       }},
      {"clamp_backward", 3 * all,
       WithBackward(x,
                    [](const Tensor& t) {
                      return Clamp(t, {-0.5, 0.5});
                    })},
      {"relu", 2 * all, [=] { Relu(x); }},
      {"relu_backward", 3 * all, WithBackward(x, Relu)},
      {"sqrt", 2 * all, [=] { Sqrt(positive); }},
      {"exp", 2 * all, [=] { Exp(x); }},
      {"log", 2 * all, [=] { Log(positive); }},
      {"tanh", 2 * all, [=] { Tanh(x); }},
      {"sigmoid", 2 * all, [=] { Sigmoid(x); }},
      {"erf", 2 * all, [=] { Erf(x); }},
      {"square", 2 * all, [=] { Pow(x, 2.0); }},
      {"cube", 2 * all, [=] { Pow(x, 3.0); }},
      {"pow_number", 2 * all, [=] { Pow(positive, 1.7); }},
      {"pow", 3 * all, [=] { Pow(positive, y); }},
      {"arange", 2 * all, [=] { Arange(n); }},
      {"zeros", all,
       [=] {
         Tensor::Zeros({rows, columns});
       }},
      {"full", all,
       [=] {
         Tensor::Full({rows, columns}, 2.0);
       }},
      {"randn", all,
       [=] {
         Randn({rows, columns}, 1);
       }},
      {"rand", all,
       [=] {
         Rand({rows, columns}, 1);
       }},
      {"max_pool", 1.5 * all, [=] { MaxPool1d(sequences, {.kernel_size = 2}); }},
      {"max_pool_overlapping", 2 * all,
       [=] { MaxPool1d(sequences, {.kernel_size = 3, .stride = 1, .padding = 1}); }},
      {"avg_pool", 1.5 * all, [=] { AvgPool1d(sequences, {.kernel_size = 2}); }},
      {"max_pool_backward", 3.5 * all,
       WithBackward(sequences, [](const Tensor& t) { return MaxPool1d(t, {.kernel_size = 2}); })},
      {"avg_pool_backward", 3 * all,
       WithBackward(sequences, [](const Tensor& t) { return AvgPool1d(t, {.kernel_size = 2}); })},
  };
  return cases;
}

// Returns the least time of some runs.
double LeastSeconds(const OpCase& op) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  op.run();
  double least = 1e9;
  const Clock::time_point start = Clock::now();
  for (int runs = 0; runs < 5 || since(start) < 0.03; ++runs) {
    const Clock::time_point begin = Clock::now();
    op.run();
    least = std::min(least, since(begin));
  }
  return least;
}

void Serve(const std::vector<OpCase>& cases) {
  for (std::string name; std::getline(std::cin, name);) {
    const auto found =
        std::ranges::find_if(cases, [&](const OpCase& op) { return op.name == name; });
    if (found == cases.end()) {
      std::cout << "0 0" << std::endl;
    } else {
      std::cout << LeastSeconds(*found) << ' ' << found->bytes << std::endl;
    }
  }
}

void PrintTable(const std::vector<OpCase>& cases, const std::string& prefix) {
  std::printf("%-30s %10s %8s %9s\n", "op", "us", "GB/s", "fraction");
  for (const OpCase& op : cases) {
    if (!std::string(op.name).starts_with(prefix)) continue;
    const double seconds = LeastSeconds(op), rate = op.bytes / seconds;
    std::printf("%-30s %10.1f %8.2f %9.2f\n", op.name, seconds * 1e6, rate * 1e-9,
                rate / BytesPerSecond());
  }
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) try {
  const std::string argument = argc > 1 ? argv[1] : "";
  const std::vector<lathe::OpCase> cases = lathe::Cases();
  if (argument == "--serve") {
    lathe::Serve(cases);
  } else {
    lathe::PrintTable(cases, argument);
  }
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
