#include "lathe/core/dnnl_product.h"

#include <absl/cleanup/cleanup.h>
#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "lathe/core/base/working_memory.h"

namespace lathe {

template <typename H>
H AbslHashValue(H h, const DnnlMatmul& p) {
  return H::combine(std::move(h), p.transpose_a, p.transpose_b, p.accumulate, p.bias,
                    static_cast<int>(p.input), static_cast<int>(p.output), p.M, p.N, p.K, p.lda,
                    p.ldb, p.ldc, p.threads);
}

template <typename H>
H AbslHashValue(H h, const DnnlDense& l) {
  return H::combine(std::move(h), l.M, l.N, l.K, l.threads);
}

namespace {

const dnnl::engine& Engine() {
  static const dnnl::engine* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::primitive_attr Attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// Building a product generates code. It takes as long as a small product itself, and up to 0.2 MB
// (with AMX more). So the products used last are kept.
template <typename Description>
DnnlPrimitive Prepared(const Description& product) {
  struct Kept {
    DnnlPrimitive made;
    int64_t last_use;
  };
  constexpr size_t kMostKept = 1024;
  static std::mutex* mutex = new std::mutex;
  static auto* all = new absl::flat_hash_map<Description, Kept>;
  static int64_t uses = 0;
  std::lock_guard lock(*mutex);
  if (const auto found = all->find(product); found != all->end()) {
    found->second.last_use = ++uses;
    return found->second.made;
  }
  if (all->size() >= kMostKept) {
    all->erase(std::min_element(all->begin(), all->end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    }));
  }
  const int threads = omp_get_max_threads();
  omp_set_num_threads(product.threads);
  const absl::Cleanup restore = [threads] { omp_set_num_threads(threads); };
  return all->emplace(product, Kept{product.Make(), ++uses}).first->second.made;
}

}  // namespace

DnnlPrimitive DnnlMatmul::Make() const {
  dnnl::primitive_attr attributes = Attributes();
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc desc =
      bias ? dnnl::matmul::desc(A(), B(), Bias(), C()) : dnnl::matmul::desc(A(), B(), C());
  const dnnl::matmul::primitive_desc chosen(desc, attributes, Engine());
  return {dnnl::matmul(chosen), chosen.scratchpad_desc()};
}

DnnlPrimitive DnnlDense::Make() const {
  const dnnl::inner_product_forward::desc desc(dnnl::prop_kind::forward_training, A(), B(), Bias(),
                                               C());
  const dnnl::inner_product_forward::primitive_desc chosen(desc, Attributes(), Engine());
  return {dnnl::inner_product_forward(chosen), chosen.scratchpad_desc()};
}

template <typename Description>
DnnlProduct<Description>::DnnlProduct(const Description& description)
    : description_(description), made_(Prepared(description)) {}

template <typename Description>
void DnnlProduct<Description>::Run(const void* a, const void* b, void* c, const float* bias) const {
  thread_local dnnl::stream stream(Engine());
  // oneDNN takes inputs as void* too, but does not write to them.
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, {description_.A(), Engine(), const_cast<void*>(a)}},
      {DNNL_ARG_WEIGHTS, {description_.B(), Engine(), const_cast<void*>(b)}},
      {DNNL_ARG_DST, {description_.C(), Engine(), c}},
      {DNNL_ARG_SCRATCHPAD,
       {made_.scratchpad, Engine(), cpu::WorkingMemory(made_.scratchpad.get_size())}}};
  if (bias != nullptr) {
    arguments.insert({DNNL_ARG_BIAS, {description_.Bias(), Engine(), const_cast<float*>(bias)}});
  }
  made_.primitive.execute(stream, arguments);
  stream.wait();
}

template class DnnlProduct<DnnlMatmul>;
template class DnnlProduct<DnnlDense>;

}  // namespace lathe
