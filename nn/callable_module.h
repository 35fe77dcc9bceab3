// CallableModule: a module whose Forward may be called as in PyTorch, `layer(x)`.
//
//   class Classifier : public CallableModule<Classifier> {
//    public:
//     explicit Classifier(int64_t in) : dense_(Register<nn::Linear>("dense", in, 2, ...)) {}
//     Tensor Forward(const Tensor& x) const { return (*dense_)(x); }
//    private:
//     std::shared_ptr<nn::Linear> dense_;
//   };
//   Classifier model(8);
//   Tensor logits = model(x);     // the same as model.Forward(x)
//
// Nothing else happens in such a call: there are no hooks.
#pragma once

#include <utility>

#include "lathe/nn/module.h"

namespace lathe {

// `M` is the class that derives from it, and has one function Forward or several. The arguments are
// Forward's.
template <typename M>
class CallableModule : public Module {
 public:
  template <typename... Args>
  requires requires(const M& module, Args&&... args) {
    module.Forward(std::forward<Args>(args)...);
  }
  decltype(auto) operator()(Args&&... args) const {
    return static_cast<const M&>(*this).Forward(std::forward<Args>(args)...);
  }
  // For a Forward that is not const.
  template <typename... Args>
  requires requires(M& module, Args&&... args) { module.Forward(std::forward<Args>(args)...); }
  decltype(auto) operator()(Args&&... args) {
    return static_cast<M&>(*this).Forward(std::forward<Args>(args)...);
  }
};

}  // namespace lathe
