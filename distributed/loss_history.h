// The losses of steps, left where they were computed until somebody asks: asking waits for the
// device.
//
//   history.Add(loss, 16);        // of each pass of a step
//   history.SetResult(48);        // the step's loss is the weighted sum over 48
//   history.CloseStep();
//   double loss = history.Last();
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

class LossHistory {
 public:
  // loss: [] float32, on the host or a device, always the same one.
  void Add(const Tensor& loss, double weight);
  // sum_i weight_i * loss_i over what was added in the present step.
  double Sum();
  // The present step's loss is Sum() / weight, or `loss`; of several calls the last one counts.
  void SetResult(double weight);
  void SetLoss(double loss);
  // What is added from now on belongs to the next step.
  void CloseStep();

  // The last result that was set; NaN if there is none.
  double Last();
  // Results of the steps that were closed since the last call, oldest first; of many, the last
  // kMost.
  std::vector<double> Take();
  // [n] float32: the losses of the step that was closed last, or their sums, so that one that isn't
  // finite shows. On their device, until the next Add; undefined on the host.
  Tensor LastOnDevice() const;

  static constexpr int64_t kMost = 1024;

 private:
  struct Term {
    double weight;
    int64_t slot;  // in ring_; -1: the value is known
    double value;
  };
  struct Step {
    std::vector<Term> terms;
    double weight = 0;
    std::optional<double> loss;
  };
  // Waits for the device: all values are known then.
  void Read();
  double ResultOf(Step& step);

  static constexpr int64_t kSlots = 512;
  Tensor ring_;                             // [kSlots] float32, where the losses are
  int64_t next_slot_ = 0, first_slot_ = 0;  // the next one; the present step's first one
  int64_t last_begin_ = 0, last_end_ = 0;   // of the step that was closed last
  Step present_;
  bool has_result_ = false;  // the present step
  std::deque<Step> closed_;
  double last_ = std::numeric_limits<double>::quiet_NaN();  // before `closed_`
};

}  // namespace lathe
