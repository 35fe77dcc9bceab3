#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "lathe/core/cpu/optimizer.h"
#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizer.h"

namespace lathe {
namespace {

size_t Blocks(ElementRange range) {
  return static_cast<size_t>((range.size() + cpu::kAdamWBlock - 1) / cpu::kAdamWBlock);
}
size_t Blocks(const std::vector<ElementRange>& ranges) {
  size_t blocks = 0;
  for (const ElementRange& range : ranges) blocks += Blocks(range);
  return blocks;
}

// Marks the inactive blocks that hold elements of `rows` as newly active. The rows are those of a
// table that begins at element `begin` of the arena, of `width` elements each. `active` has a flag
// for each block of the ranges `own`, one range after the other.
void MarkRows(std::vector<uint8_t>& active, const std::vector<ElementRange>& own, int64_t begin,
              int64_t width, const std::vector<int32_t>& rows) {
  std::vector<int64_t> first_block;
  int64_t blocks = 0;
  for (const ElementRange& range : own) {
    first_block.push_back(blocks);
    blocks += static_cast<int64_t>(Blocks(range));
  }
  for (const int32_t row : rows) {
    const ElementRange all = {begin + row * width, begin + (row + 1) * width};
    auto range = std::partition_point(own.begin(), own.end(),
                                      [&](const ElementRange& o) { return o.end <= all.begin; });
    for (; range != own.end() && range->begin < all.end; ++range) {
      const auto block = [&](int64_t element) {
        return first_block[static_cast<size_t>(range - own.begin())] +
               (element - range->begin) / cpu::kAdamWBlock;
      };
      std::replace(active.begin() + block(std::max(all.begin, range->begin)),
                   active.begin() + block(std::min(all.end, range->end) - 1) + 1, uint8_t{0},
                   cpu::kNewlyActive);
    }
  }
}

void Narrow(BFloat16* to, const float* from, int64_t n) {
  constexpr int64_t kMost = 16384;  // elements that one thread takes at a time
#pragma omp parallel for schedule(static) if (n > kMost)
  for (int64_t i = 0; i < n; i += kMost) {
    cpu::Kernels<cpu::ConvertKernels>().to_bf16(to + i, from + i, std::min(kMost, n - i));
  }
}

}  // namespace

AdamW::AdamW(std::vector<Parameter> parameters, AdamWOptions options)
    : AdamW(std::vector<ParameterGroup>{{.parameters = std::move(parameters)}}, options) {}

AdamW::AdamW(std::vector<ParameterGroup> groups, AdamWOptions options)
    : Optimizer(std::move(groups), options.lr, options.weight_decay), options_(options) {
  Check(options.beta1 >= 0 && options.beta1 < 1, "AdamW", "beta1 must be in [0, 1) but is ",
        options.beta1);
  Check(options.beta2 >= 0 && options.beta2 < 1, "AdamW", "beta2 must be in [0, 1) but is ",
        options.beta2);
  Check(options.eps >= 0, "AdamW", "eps must be at least 0 but is ", options.eps);
}

NamedSettings AdamW::Settings() const {
  NamedSettings settings = Optimizer::Settings();
  settings.insert(settings.end(), {{"optimizer", "AdamW"},
                                   {"beta1", ExactText(options_.beta1)},
                                   {"beta2", ExactText(options_.beta2)},
                                   {"eps", ExactText(options_.eps)}});
  return settings;
}

// Appends the elements of range i that can differ from the step before. For a table these are the
// rows that ever had a gradient, as long as those rows are known. All ranks append the same.
void AdamW::AddChanged(size_t i, bool marked, std::vector<ElementRange>& changed) {
  const Range& range = ranges_[i];
  const ElementRange all = {range.begin, range.begin + range.parameter.numel()};
  if (all.size() == 0) return;
  // A factor that is not finite turns gradients of 0 into NaN, in all rows that a block touches.
  any_row_[i] = any_row_[i] || !marked || !std::isfinite(range.parameter.impl()->gradient().scale);
  if (any_row_[i]) return changed.push_back(all);
  const int64_t width = range.parameter.numel() / range.parameter.dim(0);
  rows_[i].resize(static_cast<size_t>(range.parameter.dim(0)));
  for (const int32_t row : *range.parameter.impl()->gradient().rows) {
    rows_[i][static_cast<size_t>(row)] = true;
  }
  for (size_t row = 0; row < rows_[i].size(); ++row) {
    if (!rows_[i][row]) continue;
    const int64_t begin = all.begin + static_cast<int64_t>(row) * width;
    if (!changed.empty() && changed.back().end >= begin) {
      changed.back().end = begin + width;
    } else {
      changed.push_back({begin, begin + width});
    }
  }
}

void AdamW::AllocateState() {
  if (exp_avg_.defined()) return;
  exp_avg_ = arena_->NewBuffer();
  exp_avg_sq_ = arena_->NewBuffer();
  for (const Range& range : ranges_) active_.emplace_back(Blocks(range.own));
  any_row_.assign(ranges_.size(), false);
  rows_.resize(ranges_.size());
}

namespace {

// Returns true if one of the n numbers has a bit set. A moment of -0 counts.
bool HasBits(const float* x, int64_t n) {
  return std::any_of(x, x + n, [](float v) { return std::bit_cast<uint32_t>(v) != 0; });
}

}  // namespace

// Finds out again which blocks of range i are active and which rows ever had a gradient: those
// whose moments are not all 0. The others would stay as they are in any case.
void AdamW::FindActive(size_t i) {
  const Range& range = ranges_[i];
  active_[i].clear();
  if (!exp_avg_.device().is_cpu()) {
    active_[i].assign(Blocks(range.own), 1);
    any_row_[i] = true;
    return;
  }
  const float* const m = exp_avg_.data<float>();
  const float* const v = exp_avg_sq_.data<float>();
  const auto has_moments = [&](int64_t begin, int64_t end) {
    return HasBits(m + begin, end - begin) || HasBits(v + begin, end - begin);
  };
  for (const ElementRange& own : range.own) {
    for (int64_t begin = own.begin; begin < own.end; begin += cpu::kAdamWBlock)
      active_[i].push_back(has_moments(begin, std::min(begin + cpu::kAdamWBlock, own.end)));
  }
  any_row_[i] = !arena_->entries()[i].parameter.is_table || range.parameter.numel() == 0;
  rows_[i].clear();
  if (any_row_[i]) return;
  const int64_t rows = range.parameter.dim(0), width = range.parameter.numel() / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = range.begin + row * width;
    rows_[i].push_back(has_moments(begin, begin + width));
  }
}

void AdamW::OnStateLoaded() {
  for (size_t i = 0; i < ranges_.size(); ++i) FindActive(i);
}

// The new stripes may come from other ranks, with any moments.
void AdamW::OnOwnRangesChanged(size_t range) {
  if (exp_avg_.defined()) FindActive(range);
}

void AdamW::UpdateDeviceValues() {
  // If the model comes back to the host, the moments of any block may differ from 0.
  for (std::vector<uint8_t>& active : active_) std::fill(active.begin(), active.end(), 1);
  UpdateOnDevice(
      {.rule = {.kind = RateKind::kAdamW, .beta1 = options_.beta1, .beta2 = options_.beta2},
       .adamw = {.one_minus_beta1 = static_cast<float>(1 - options_.beta1),
                 .beta2 = static_cast<float>(options_.beta2),
                 .one_minus_beta2 = static_cast<float>(1 - options_.beta2),
                 .eps = static_cast<float>(options_.eps)},
       .m = exp_avg_,
       .v = exp_avg_sq_});
}

// Appends the ranges in `own` of range i to `updates`. `narrow`: the parameter's bfloat16 copy,
// which the update writes too, or null.
void AdamW::AddUpdates(size_t i, const float* grads, BFloat16* narrow,
                       std::vector<cpu::AdamWRange>& updates, std::vector<ElementRange>& changed) {
  const Range& range = ranges_[i];
  const LeafGradient& gradient = range.parameter.impl()->gradient();
  const double t = static_cast<double>(++steps_.data<int64_t>()[i]);
  const double rate = lr(range.group);
  const float decay = static_cast<float>(1 - rate * weight_decay_[range.group]);
  // A block of a parameter that never had a gradient stays as it is, unless it decays. Rows of
  // words that never came up are an example.
  const bool passes_over = decay == 1 && options_.eps > 0;
  if (!passes_over) std::fill(active_[i].begin(), active_[i].end(), 1);
  const int64_t range_end = range.begin + range.parameter.numel();  // without the gap after it
  const bool marked = passes_over && gradient.rows.has_value();
  if (marked) {
    const int64_t width = range.parameter.numel() / range.parameter.dim(0);
    MarkRows(active_[i], range.own, range.begin, width, *gradient.rows);
  }
  if (sharded_update_.adopted() != nullptr) AddChanged(i, marked, changed);
  const cpu::AdamWStep step = {
      .decay = decay,
      .beta2 = static_cast<float>(options_.beta2),
      .one_minus_beta1 = static_cast<float>(1 - options_.beta1),
      .one_minus_beta2 = static_cast<float>(1 - options_.beta2),
      .step_size = static_cast<float>(rate / (1 - std::pow(options_.beta1, t))),
      .inverse_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t))),
      .eps = static_cast<float>(options_.eps),
      .grad_scale = gradient.scale};
  float* const values = arena_->values().data<float>();
  uint8_t* active = active_[i].data();
  for (const ElementRange& own : range.own) {
    updates.push_back({.p = values + own.begin,
                       .m = exp_avg_.data<float>() + own.begin,
                       .v = exp_avg_sq_.data<float>() + own.begin,
                       .narrow = narrow == nullptr ? nullptr : narrow + (own.begin - range.begin),
                       .active = active,
                       .marked = marked,
                       .g = grads + own.begin,
                       .n = std::min(own.end, range_end) - own.begin,
                       .step = step});
    active += Blocks(own);
  }
}

void AdamW::UpdateParameters() {
  AllocateState();
  const Tensor& values = arena_->values();
  if (!values.device().is_cpu()) return UpdateDeviceValues();
  const float* const grads = arena_->GradsToRead(/*scaled=*/false).data<float>();
  std::vector<cpu::AdamWRange> updates;
  const int64_t version = values.impl()->storage->version();
  std::vector<const Range*> narrowed;  // the update keeps their bfloat16 copies current
  std::vector<TensorImpl*> unchanged;  // frozen, so their low-precision copies stay current
  std::vector<ElementRange> changed;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    TensorImpl& parameter = *ranges_[i].parameter.impl();
    const bool is_current = parameter.low_precision_version == version;
    if (!parameter.requires_grad) {
      if (is_current) unchanged.push_back(&parameter);
      continue;
    }
    BFloat16* narrow = nullptr;
    if (parameter.low_precision != nullptr && parameter.low_precision->dtype == DType::kBF16) {
      // Other ranks may rely on this rank to write its stripes of a shared copy.
      if (is_current || parameter.low_precision->storage->is_writable_by_others())
        narrow = Tensor(parameter.low_precision).data<BFloat16>();
      if (is_current) narrowed.push_back(&ranges_[i]);
    }
    AddUpdates(i, grads, narrow, updates, changed);
  }
  cpu::Kernels<cpu::OptimizerKernels>().adamw(updates.data(), std::ssize(updates));
  const bool complete = GatherUpdates(changed);
  values.impl()->storage->BumpVersion();
  const int64_t now = values.impl()->storage->version();
  for (TensorImpl* parameter : unchanged) parameter->low_precision_version = now;
  if (!complete) return;  // the others are made again from all values when they are needed
  for (const Range* range : narrowed) {
    range->parameter.impl()->low_precision_version = now;
    NarrowValuesOfOthers(*range);
  }
}

// Writes the other ranks' elements of a parameter's bfloat16 copy, which the update left out. A
// shared copy has them already.
void AdamW::NarrowValuesOfOthers(const Range& range) {
  const TensorImpl& parameter = *range.parameter.impl();
  const OptimizerShards* const shards = sharded_update_.adopted();
  if (shards == nullptr || parameter.low_precision->storage->is_writable_by_others()) return;
  BFloat16* const narrow = Tensor(parameter.low_precision).data<BFloat16>();
  const float* const values = arena_->values().data<float>();
  const ElementRange all = {range.begin, range.begin + range.parameter.numel()};
  for (const ElementRange& other : Intersection(all, shards->others)) {
    Narrow(narrow + (other.begin - all.begin), values + other.begin, other.size());
  }
}

}  // namespace lathe
