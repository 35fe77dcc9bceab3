// The losses of optimizer steps. They stay on their device until somebody asks for a number, which
// then waits for the device.
//
//   history.Add(loss, 16);        // for each pass of a step
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
  // `loss`: [] float32, on the host or on a device, but always on the same one.
  void Add(const Tensor& loss, double weight);
  // Returns sum_i weight_i * loss_i over the losses that were added in the present step.
  double Sum() { return SumOf(present_); }
  // Set the present step's loss to Sum() / weight, or to `loss`. If called several times, the last
  // call counts.
  void SetResult(double weight);
  void SetLoss(double loss);
  // Ends the present step. Losses added from now on belong to the next one.
  void CloseStep();

  // Returns sum / weight; `sum` if nothing has a weight.
  static double Mean(double sum, double weight) { return weight > 0 ? sum / weight : sum; }

  // Returns the last result that was set; NaN if there is none.
  double Last();
  // Returns the results of the steps that were closed since the last call, oldest first. It returns
  // at most the last kMost.
  std::vector<double> Take();
  // Returns the losses of the step that was closed last: [n] float32 on their device, valid until
  // the next Add. One element may be the sum of several losses, which still shows a loss that isn't
  // finite. Undefined on the host.
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
  // Fills in the values of all terms, for which it waits for the device.
  void Read();
  double SumOf(const Step& step);
  double ResultOf(const Step& step);

  static constexpr int64_t kSlots = 512;
  Tensor ring_;                             // [kSlots] float32: losses on their device
  int64_t next_slot_ = 0, first_slot_ = 0;  // the next free slot; the present step's first
  int64_t last_begin_ = 0, last_end_ = 0;   // the slots of the step that was closed last
  Step present_;
  bool has_result_ = false;  // of the present step
  std::deque<Step> closed_;
  double last_ = std::numeric_limits<double>::quiet_NaN();  // the result before those in `closed_`
};

}  // namespace lathe
