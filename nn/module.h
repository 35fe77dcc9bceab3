// Module: a tree of named parameters. Paths equal Transformers' names, so loading needs no table.
//
//   class Classifier : public Module {
//    public:
//     explicit Classifier(int64_t in) : dense_(Register<Linear>("dense", in, 2)) {}
//     Tensor Forward(const Tensor& x) const { return dense_->Forward(x); }
//    private:
//     std::shared_ptr<Linear> dense_;
//   };
//   Classifier model(8);
//   model.Initialize(/*seed=*/42);       // "dense.weight" [2, 8], "dense.bias" [2]
//
// Parameters have a shape but no values at first. Initialize (fresh values) or a loader allocates
// them, all in one arena (nn/arena.h).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/nn/init.h"

namespace lathe {

struct Parameter {
  std::string name;  // path, e.g. "bert.pooler.dense.weight"
  Tensor tensor;
  Init init = {};
  bool decays = true;     // false for biases and the parameters of a norm (Trainer's rule)
  bool is_table = false;  // true if a batch reads only a few of its rows
};

// Pairs of name and value.
using NamedSettings = std::vector<std::pair<std::string, std::string>>;
// Returns a number as text, exactly: different numbers give different texts.
std::string ExactText(double value);

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Returns all parameters of the tree, in order of registration (= order of use in the forward
  // pass).
  std::vector<Parameter> Parameters() const;
  int64_t NumParameters() const;  // the number of their elements

  // Allocates parameters that have no values yet, then draws fresh values for all parameters from
  // their initialisers. The values depend only on the seed and the paths.
  void Initialize(uint64_t seed);

  // Moves all parameters and their gradients to a device. Parameters that share a buffer share one
  // there too. An arena that holds all of them adopts the new buffer (nn/arena.h).
  void To(Device device);
  // The device of the parameters; the host if there are none.
  Device device() const;

  void Train(bool training = true);
  void Eval() { Train(false); }
  bool training() const { return training_; }

  // Sets the dtype of activations and products between input and head: float32, or for mixed
  // precision bfloat16 or (on GPUs) float16. Parameters and their gradients stay float32.
  // Accelerator::Prepare calls it.
  void SetComputeDType(DType dtype);
  DType compute_dtype() const { return compute_dtype_; }

  // If enabled, training keeps only the input of each layer and computes the rest again in the
  // backward pass. Results are the same; it saves memory and costs one more forward pass.
  void SetGradientCheckpointing(bool enabled);
  bool gradient_checkpointing() const { return gradient_checkpointing_; }

  // Returns one byte per module of the tree, this module first, that holds its three modes above.
  // The result is the same as long as no mode is changed.
  std::string Modes() const;

  // Returns everything that determines the results besides parameters and modes, such as
  // configurations and seeds, as names and values. The names of submodules' settings are paths.
  // Accelerator::Prepare demands the same on all ranks.
  NamedSettings Settings() const;

 protected:
  // This module's own part of Settings().
  virtual NamedSettings OwnSettings() const { return {}; }
  // The names of a module's parts differ: Register... throws for one that is there already.
  Tensor RegisterParameter(std::string name, Shape shape, Init init, bool decays = true,
                           bool is_table = false);
  // Registers numbers that belong to a checkpoint but are not trained.
  Tensor RegisterConstant(std::string name, Shape shape, Init init);
  // An empty name adds nothing to the paths of the module's parameters.
  template <typename M, typename... Args>
  std::shared_ptr<M> Register(std::string name, Args&&... args) {
    auto module = std::make_shared<M>(std::forward<Args>(args)...);
    RegisterModule(std::move(name), module);
    return module;
  }
  void RegisterModule(std::string name, std::shared_ptr<Module> module);

 private:
  struct Entry {  // exactly one of parameter.tensor and module is set
    std::string name;
    Parameter parameter;
    std::shared_ptr<Module> module;
  };
  void CheckIsNew(const std::string& name) const;
  void Collect(const std::string& prefix, std::vector<Parameter>& out) const;
  void CollectModes(std::string& out) const;
  void CollectSettings(const std::string& prefix, NamedSettings& out) const;
  std::vector<Entry> entries_;
  bool training_ = false;
  DType compute_dtype_ = DType::kF32;
  bool gradient_checkpointing_ = false;
};

}  // namespace lathe
