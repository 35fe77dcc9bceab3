#include "lathe/distributed/reduce/shared_copies.h"

#include <string>
#include <vector>

#include "lathe/distributed/groups/collectives.h"

namespace lathe {

void ShareLowPrecisionCopies(ProcessGroup& group, ParameterArena& arena) {
  // A rank whose share of the batch was empty has had no pass, and so has no copy.
  std::string mine;
  for (const ParameterArena::Entry& entry : arena.entries()) {
    const auto& copy = entry.parameter.tensor.impl()->low_precision;
    const bool own =
        copy != nullptr && copy->dtype == DType::kBF16 && !copy->storage->is_writable_by_others();
    mine.push_back(own ? '1' : '0');
  }
  std::string some = mine;
  for (const std::string& others : GatherStrings(group, mine)) {
    for (size_t i = 0; i < some.size(); ++i) {
      if (others.at(i) == '1') some[i] = '1';
    }
  }
  constexpr int64_t kAlignment = 32;  // in elements
  std::vector<int64_t> places;        // of the copies that some rank has
  int64_t size = 0;
  for (size_t i = 0; i < some.size(); ++i) {
    places.push_back(size);
    const int64_t elements = arena.entries()[i].parameter.tensor.numel();
    if (some[i] == '1') size += (elements + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (size == 0) return;
  const Tensor copies = Tensor::Zeros({size}, DType::kBF16);
  std::vector<Tensor> views(some.size());
  for (size_t i = 0; i < some.size(); ++i) {
    if (some[i] != '1') continue;
    const Tensor& p = arena.entries()[i].parameter.tensor;
    views[i] = copies.Slice(places[i], places[i] + p.numel()).Reshape(p.shape());
    views[i].CopyFrom(p);
  }
  group.ShareMemory(*copies.impl()->storage);
  if (!copies.impl()->storage->is_writable_by_others()) return;
  for (size_t i = 0; i < some.size(); ++i) {
    if (some[i] != '1') continue;
    TensorImpl& p = *arena.entries()[i].parameter.tensor.impl();
    p.low_precision = views[i].impl();
    p.low_precision_version = p.storage->version();
  }
}

}  // namespace lathe
