// Adafactor's state, and its update on the host.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizers/optimizers.h"

namespace lathe {
namespace {

using update_rules::FactoredShape;

constexpr int64_t kBlock = 4096;  // elements whose squares are added up together

// Returns f(0) + ... + f(n - 1), in an order that doesn't depend on the number of threads.
template <typename F>
double SumOf(int64_t n, F f) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
#pragma omp parallel for schedule(static) if (n > 16384)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t end = std::min((block + 1) * kBlock, n);
    double sum = 0;
    for (int64_t i = block * kBlock; i < end; ++i) sum += f(i);
    sums[block] = sum;
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

// Moves the moments of rows and of columns towards the means of squares + added.
void UpdateFactors(const FactoredShape& s, float take, float added, const float* g,
                   float* moments) {
  const int64_t rows = s.NumRows(), cols = s.cols, n = rows * cols;
#pragma omp parallel for schedule(static) if (n > 16384)
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double grad = g[row * cols + c];
      sum += grad * grad + added;
    }
    moments[row] += take * (static_cast<float>(sum / static_cast<double>(cols)) - moments[row]);
  }
  float* const of_columns = moments + rows;
  constexpr int64_t kTile = 64;  // columns that one thread takes at a time
  const int64_t tiles = (cols + kTile - 1) / kTile;
#pragma omp parallel for schedule(static) if (n > 16384)
  for (int64_t t = 0; t < s.matrices * tiles; ++t) {
    const int64_t matrix = t / tiles, begin = t % tiles * kTile;
    const int64_t width = std::min(kTile, cols - begin);
    double sums[kTile] = {};
    for (int64_t row = 0; row < s.rows; ++row) {
      const float* const line = g + (matrix * s.rows + row) * cols + begin;
      for (int64_t c = 0; c < width; ++c) {
        const double grad = line[c];
        sums[c] += grad * grad + added;
      }
    }
    for (int64_t c = 0; c < width; ++c) {
      float& moment = of_columns[matrix * cols + begin + c];
      moment += take * (static_cast<float>(sums[c] / static_cast<double>(s.rows)) - moment);
    }
  }
}

}  // namespace

Adafactor::Adafactor(std::vector<ParameterGroup> groups, AdafactorOptions o)
    : Optimizer(std::move(groups), o.lr, o.weight_decay),
      options_(o),
      rates_{.kind = RateKind::kAdafactor, .decay = o.beta2_decay, .limited = !o.transformers} {
  Check(o.beta2_decay <= 0 && std::isfinite(o.beta2_decay), "Adafactor",
        "beta2_decay must be finite and at most 0 but is ", o.beta2_decay);
  Check(std::isfinite(o.eps1), "Adafactor", "eps1 must be finite but is ", o.eps1);
  Check(o.eps2 >= 0 && std::isfinite(o.eps2), "Adafactor",
        "eps2 must be finite and at least 0 but is ", o.eps2);
  Check(o.d >= 1 && std::isfinite(o.d), "Adafactor", "d must be finite and at least 1 but is ",
        o.d);
  const double eps1 = o.eps1 >= 0      ? o.eps1
                      : o.transformers ? 1e-30
                                       : std::numeric_limits<float>::epsilon();
  rule_ = {.added = o.transformers ? static_cast<float>(eps1) : 0,
           .least_mean = o.transformers ? 0 : static_cast<float>(eps1),
           .least_square = o.transformers ? 0 : static_cast<float>(eps1 * eps1),
           .least = static_cast<float>(o.eps2),
           .most = static_cast<float>(o.d),
           .scales = !o.transformers,
           .divides_twice = o.transformers};
  int64_t begin = 0;
  for (const Range& range : ranges_) {
    const Shape& shape = range.parameter.shape();
    FactoredShape factored = {.rows = range.parameter.numel(), .begin = begin, .means = means_};
    if (shape.size() > 1 && range.parameter.numel() > 0) {
      factored.cols = shape[shape.size() - 1];
      factored.rows = shape[shape.size() - 2];
      factored.matrices = range.parameter.numel() / (factored.rows * factored.cols);
      means_ += factored.matrices;
    }
    begin += factored.Size();
    shapes_.push_back(factored);
  }
}

NamedSettings Adafactor::Settings() const {
  NamedSettings settings = Optimizer::Settings();
  settings.insert(settings.end(),
                  {{"optimizer", options_.transformers ? "Adafactor of Transformers" : "Adafactor"},
                   {"beta2_decay", ExactText(options_.beta2_decay)},
                   {"eps1", ExactText(options_.eps1)},
                   {"eps2", ExactText(options_.eps2)},
                   {"d", ExactText(options_.d)}});
  return settings;
}

void Adafactor::AllocateState() {
  if (moments_.defined()) return;
  int64_t size = 0;
  for (const FactoredShape& shape : shapes_) size += shape.Size();
  moments_ = Tensor::Zeros({size}, DType::kF32, arena_->values().device());
}

std::vector<Optimizer::OwnState> Adafactor::OwnStateOf(size_t range) {
  if (!moments_.defined()) return {};
  const FactoredShape& s = shapes_[range];
  const auto part = [&](int64_t begin, int64_t n) {
    return moments_.Slice(s.begin + begin, s.begin + begin + n);
  };
  Shape shape = ranges_[range].parameter.shape();
  if (s.cols == 0) return {{"variance", part(0, s.rows).Reshape(shape)}};
  Shape of_rows = shape, of_cols = shape;
  of_rows[shape.size() - 1] = 1;
  of_cols[shape.size() - 2] = 1;
  return {{"row_var", part(0, s.NumRows()).Reshape(of_rows)},
          {"col_var", part(s.NumRows(), s.matrices * s.cols).Reshape(of_cols)}};
}

void Adafactor::Update(size_t i, const DeviceRates& rates, const float* grads) {
  const Range& range = ranges_[i];
  const FactoredShape& s = shapes_[i];
  float* const p = arena_->values().data<float>() + range.begin;
  const float* const g = grads + range.begin;
  float* const moments = moments_.data<float>() + s.begin;
  const int64_t n = range.parameter.numel();
  const update_rules::Adafactor rule = rule_;
  std::vector<float> means;
  if (s.cols > 0) {
    UpdateFactors(s, rates.take, rule.added, g, moments);
    for (int64_t matrix = 0; matrix < s.matrices; ++matrix) {
      double sum = 0;
      for (int64_t row = 0; row < s.rows; ++row) sum += moments[matrix * s.rows + row];
      means.push_back(rule.LimitedMean(static_cast<float>(sum / static_cast<double>(s.rows))));
    }
  } else {
    for (int64_t k = 0; k < n; ++k) {
      moments[k] += rates.take * (g[k] * g[k] + rule.added - moments[k]);
    }
  }
  // The roots by which rule.Update divides, if there are two for each element.
  std::vector<float> roots;
  if (s.cols > 0 && rule.divides_twice) {
    for (int64_t row = 0; row < s.NumRows(); ++row)
      roots.push_back(rule.RootOfRow(moments[row], means[row / s.rows]));
    for (int64_t c = s.NumRows(); c < s.Size(); ++c) roots.push_back(std::sqrt(moments[c]));
  }
  // The update of element k.
  const auto update = [&](int64_t k) {
    if (s.cols == 0) return g[k] / std::sqrt(rule.Limited(moments[k]));
    const int64_t row = k / s.cols, matrix = row / s.rows;
    const int64_t col = s.NumRows() + matrix * s.cols + k % s.cols;
    if (rule.divides_twice) return g[k] / roots[row] / roots[col];
    return rule.Update(g[k], moments[row], moments[col], means[matrix]);
  };
  const double values = SumOf(n, [&](int64_t k) { return static_cast<double>(p[k]) * p[k]; });
  const double updates = SumOf(n, [&](int64_t k) {
    const double u = update(k);
    return u * u;
  });
  const auto factor = static_cast<float>(
      rule.Step(values, updates, static_cast<double>(n), static_cast<double>(rates.step_size)));
#pragma omp parallel for schedule(static) if (n > 16384)
  for (int64_t k = 0; k < n; ++k) p[k] = p[k] * rates.decay - factor * update(k);
}

void Adafactor::UpdateParameters() {
  AllocateState();
  const Tensor& values = arena_->values();
  moments_ = moments_.To(values.device());  // the model may have moved since
  if (!values.device().is_cpu()) {
    const auto bytes = static_cast<int64_t>(shapes_.size() * sizeof(FactoredShape));
    if (!shapes_there_.defined() || shapes_there_.device() != values.device()) {
      shapes_there_ = Tensor::Empty({bytes}, DType::kU8, values.device());
      BackendOf(values.device()).CopyToDevice(shapes_there_.raw_data(), shapes_.data(), bytes);
    }
    update_rules::Adafactor rule = rule_;
    rule.shapes = static_cast<const FactoredShape*>(shapes_there_.raw_data());
    return UpdateOnDevice({.rule = rates_, .update = rule, .m = moments_, .means = means_});
  }
  const Tensor& grads = arena_->GradsToRead();
  int64_t* const steps = steps_.data<int64_t>();
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (!range.parameter.requires_grad() || range.parameter.numel() == 0) continue;
    const DeviceRates rates = update_rules::RatesOf(
        rates_, lr(range.group), weight_decay_[range.group], static_cast<double>(++steps[i]));
    Update(i, rates, grads.data<float>());
  }
  values.impl()->storage->BumpVersion();
}

}  // namespace lathe
