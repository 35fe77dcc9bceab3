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
// Parameters have a shape but no values until Initialize (fresh values) or a loader allocates them,
// all in one arena (nn/arena.h).
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
  bool is_table = false;  // of which a batch reads a few rows
};

// Names and values.
using NamedSettings = std::vector<std::pair<std::string, std::string>>;
// A number as a value among them: no two different ones alike.
std::string ExactText(double value);

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // All parameters of the tree, in order of registration (= order of use in the forward pass).
  std::vector<Parameter> Parameters() const;
  int64_t NumParameters() const;  // elements

  // Allocates whatever has no values yet and draws fresh values for all parameters from their
  // initialisers, a function of (seed, path) alone.
  void Initialize(uint64_t seed);

  // Moves all parameters, their gradients too, to a device. Parameters that share a buffer there
  // share one here; arenas of all of them follow (nn/arena.h).
  void To(Device device);
  // Where the parameters lie; the host if there are none.
  Device device() const;

  void Train(bool training = true);
  void Eval() { Train(false); }
  bool training() const { return training_; }

  // The dtype of activations and products between input and head: float32, or bfloat16 or (on GPUs)
  // float16 for mixed precision. Parameters and their gradients stay float32. Accelerator::Prepare
  // sets it.
  void SetComputeDType(DType dtype);
  DType compute_dtype() const { return compute_dtype_; }

  // Whether training keeps only what enters each layer and computes the rest again in the backward
  // pass: the same results for less memory and a forward pass more.
  void SetGradientCheckpointing(bool enabled);
  bool gradient_checkpointing() const { return gradient_checkpointing_; }

  // The three modes above of each module of the tree in one byte, this module first: equal as long
  // as none of them is changed.
  std::string Modes() const;

  // What decides on the results of the tree's modules besides parameters and modes, as names (of
  // submodules: by path) and values: configurations, seeds. Accelerator::Prepare demands that it is
  // the same in all processes of a job.
  NamedSettings Settings() const;

 protected:
  // This module's own part of Settings().
  virtual NamedSettings OwnSettings() const { return {}; }
  Tensor RegisterParameter(std::string name, Shape shape, Init init, bool decays = true,
                           bool is_table = false);
  template <typename M, typename... Args>
  std::shared_ptr<M> Register(std::string name, Args&&... args) {
    auto module = std::make_shared<M>(std::forward<Args>(args)...);
    RegisterModule(std::move(name), module);
    return module;
  }
  void RegisterModule(std::string name, std::shared_ptr<Module> module);

 private:
  struct Entry {  // exactly one of tensor and module is set
    std::string name;
    Parameter parameter;
    std::shared_ptr<Module> module;
  };
  void Collect(const std::string& prefix, std::vector<Parameter>& out) const;
  void CollectModes(std::string& out) const;
  void CollectSettings(const std::string& prefix, NamedSettings& out) const;
  std::vector<Entry> entries_;
  bool training_ = false;
  DType compute_dtype_ = DType::kF32;
  bool gradient_checkpointing_ = false;
};

}  // namespace lathe
