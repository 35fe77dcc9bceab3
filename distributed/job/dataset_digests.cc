#include "lathe/distributed/job/dataset_digests.h"

#include "lathe/core/base/philox.h"

namespace lathe {
namespace {

template <typename T>
std::string Digest(const std::vector<T>& values) {
  return std::to_string(
      HashName({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}));
}

}  // namespace

NamedValues DatasetDigests(const TokenizedDataset& data, const std::string& name) {
  const std::string space = name.empty() ? "" : " ";
  const std::string digest = "digest of " + name + space;
  return {{name + space + "dataset of size", std::to_string(data.size())},
          {digest + "token ids", Digest(data.input_ids)},
          {digest + "token type ids", Digest(data.token_type_ids)},
          {digest + "lengths", Digest(data.offsets)},
          {digest + "labels", Digest(data.classes) + Digest(data.scores)}};
}

}  // namespace lathe
