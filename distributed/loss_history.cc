#include "lathe/distributed/loss_history.h"

#include <algorithm>
#include <utility>

namespace lathe {

void LossHistory::Add(const Tensor& loss, double weight) {
  if (loss.device().is_cpu()) {
    present_.terms.push_back({weight, -1, loss.Item()});
    return;
  }
  if (!ring_.defined()) ring_ = Tensor::Zeros({kSlots}, DType::kF32, loss.device());
  // A step that would begin in the second half of the ring begins at its start instead. It then
  // likely has room for its losses side by side.
  const bool starts = first_slot_ == next_slot_;
  if (next_slot_ == kSlots || (starts && next_slot_ > kSlots / 2)) {
    Read();
    // The sum replaces the losses that are overwritten. It is not finite if one of them is not.
    double sum = 0;
    for (const Term& term : present_.terms) sum += term.value;
    first_slot_ = next_slot_ = 0;
    if (!present_.terms.empty()) ring_.Slice(0, next_slot_ = 1).Fill(sum);
  }
  ring_.Slice(next_slot_, next_slot_ + 1).Reshape({}).CopyFrom(loss.Detach());
  present_.terms.push_back({weight, next_slot_++, 0});
}

void LossHistory::Read() {
  if (!ring_.defined()) return;
  std::vector<float> values;
  const auto resolve = [&](Step& step) {
    for (Term& term : step.terms) {
      if (term.slot < 0) continue;
      if (values.empty()) values = ring_.ToVector<float>();
      term.value = values[static_cast<size_t>(std::exchange(term.slot, -1))];
    }
  };
  for (Step& step : closed_) resolve(step);
  resolve(present_);
}

double LossHistory::SumOf(const Step& step) {
  Read();
  double sum = 0;
  for (const Term& term : step.terms) sum += term.weight * term.value;
  return sum;
}

double LossHistory::ResultOf(const Step& step) {
  return step.loss ? *step.loss : Mean(SumOf(step), step.weight);
}

void LossHistory::SetResult(double weight) {
  present_.weight = weight;
  present_.loss.reset();
  has_result_ = true;
}

void LossHistory::SetLoss(double loss) {
  present_.loss = loss;
  has_result_ = true;
}

void LossHistory::CloseStep() {
  if (std::exchange(has_result_, false)) closed_.push_back(std::exchange(present_, {}));
  present_ = {};
  last_begin_ = std::exchange(first_slot_, next_slot_);
  last_end_ = next_slot_;
  if (std::ssize(closed_) <= kMost) return;
  last_ = ResultOf(closed_.front());
  closed_.pop_front();
}

double LossHistory::Last() {
  if (has_result_) return ResultOf(present_);
  return closed_.empty() ? last_ : ResultOf(closed_.back());
}

std::vector<double> LossHistory::Take() {
  std::vector<double> results;
  for (Step& step : closed_) results.push_back(ResultOf(step));
  if (!results.empty()) last_ = results.back();
  closed_.clear();
  return results;
}

Tensor LossHistory::LastOnDevice() const {
  return last_begin_ == last_end_ ? Tensor() : ring_.Slice(last_begin_, last_end_);
}

}  // namespace lathe
