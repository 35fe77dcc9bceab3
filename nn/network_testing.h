// A small network for tests of modules and arenas.
#pragma once

#include <cstdint>
#include <memory>

#include "lathe/nn/module.h"

namespace lathe {

class Dense : public Module {
 public:
  Dense(int64_t in, int64_t out)
      : weight(RegisterParameter("weight", {out, in}, Init::Normal(0.02))),
        bias(RegisterParameter("bias", {out}, Init::Zeros(), /*decays=*/false)) {}
  Tensor weight, bias;
};

class Network : public Module {
 public:
  Network() : first(Register<Dense>("first", 3, 5)), second(Register<Dense>("second", 5, 2)) {}
  std::shared_ptr<Dense> first, second;
};

}  // namespace lathe
