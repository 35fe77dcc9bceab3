// Containers of modules: Sequential and ModuleList, with PyTorch's paths ("0.weight").
//
//   nn::Sequential mlp;
//   mlp.Add<nn::Linear>(8, 16, nn::DefaultInit(8)).Add<nn::ReLU>();
//   mlp.Add<nn::Linear>(16, 2, nn::DefaultInit(16));
//   mlp.Initialize(42);
//   Tensor logits = mlp(x);   // x: [N, 8] -> [N, 2]; parameters 0.weight, 2.bias, ...
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/nn/callable_module.h"

namespace lathe::nn {

// Returns the values that PyTorch's Linear gives its weight: uniform within 1 / sqrt(fan_in).
inline Init DefaultInit(int64_t fan_in) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return Init::Uniform(-bound, bound);
}

// Modules that run one after the other. Each has a Forward that takes one tensor and returns one.
class Sequential : public CallableModule<Sequential> {
 public:
  Sequential() = default;
  // nn::Sequential mlp(first, second), with shared pointers to modules.
  template <typename... M>
  explicit Sequential(std::shared_ptr<M>... modules) {
    (Append(std::move(modules)), ...);
  }

  // Makes a module of type M and appends it. Returns this container.
  template <typename M, typename... Args>
  Sequential& Add(Args&&... args) {
    return Append(std::make_shared<M>(std::forward<Args>(args)...));
  }
  template <typename M>
  Sequential& Append(std::shared_ptr<M> module) {
    Check(module != nullptr, "sequential", "expected a module but got null");
    RegisterModule(std::to_string(size()), module);
    forward_.push_back([module](const Tensor& x) { return module->Forward(x); });
    return *this;
  }

  // Without modules it returns x.
  Tensor Forward(const Tensor& x) const {
    Tensor y = x;
    for (const auto& forward : forward_) y = forward(y);
    return y;
  }
  int64_t size() const { return std::ssize(forward_); }

 private:
  std::vector<std::function<Tensor(const Tensor&)>> forward_;
};

// A list of modules of one type, which the owner calls itself.
//
//   layers_ = Register<nn::ModuleList<nn::Linear>>("layers");
//   for (int i = 0; i < 4; ++i) layers_->Add(8, 8, nn::DefaultInit(8));
//   for (const auto& layer : *layers_) x = Relu(layer->Forward(x));
template <typename M = Module>
class ModuleList : public Module {
 public:
  template <typename... Args>
  ModuleList& Add(Args&&... args) {
    return Append(std::make_shared<M>(std::forward<Args>(args)...));
  }
  ModuleList& Append(std::shared_ptr<M> module) {
    Check(module != nullptr, "module_list", "expected a module but got null");
    RegisterModule(std::to_string(size()), module);
    modules_.push_back(std::move(module));
    return *this;
  }
  int64_t size() const { return std::ssize(modules_); }
  // Throws unless 0 <= i < size().
  M& operator[](int64_t i) const {
    Check(i >= 0 && i < size(), "module_list", "expected an index in [0, ", size(), ") but got ",
          i);
    return *modules_[static_cast<size_t>(i)];
  }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

 private:
  std::vector<std::shared_ptr<M>> modules_;
};

}  // namespace lathe::nn
