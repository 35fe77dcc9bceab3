// Printer: the standard output of one process of a job. One process prints for all of them.
//
//   Printer printer(accelerator.is_main_process());
//   printer.out() << "steps  100" << std::endl;
#pragma once

#include <iostream>
#include <ostream>

namespace lathe {

class Printer {
 public:
  // With `prints` false, what this process writes is discarded.
  explicit Printer(bool prints) : prints_(prints) {}
  std::ostream& out() { return prints_ ? std::cout : nowhere_; }

 private:
  const bool prints_;
  std::ostream nowhere_{nullptr};  // has no buffer
};

}  // namespace lathe
