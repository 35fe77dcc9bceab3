// The file of class_weights, which gives each label a number. The file of thresholds has the same
// form.
#include <cmath>
#include <stdexcept>
#include <string>

#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/train/support/class_weights.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  for (const auto& [label, weight] : ReadClassWeights(ScratchFile("weights.json", input))) {
    if (!(weight > 0) || !std::isfinite(weight))
      throw std::logic_error("label \"" + label + "\" got a weight that is not positive");
  }
}
