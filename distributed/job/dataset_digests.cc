#include "lathe/distributed/job/dataset_digests.h"

#include "lathe/core/base/philox.h"
#include "lathe/data/datasets/row_file.h"

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
  // A file holds the digests that the same rows would have in memory.
  const RowFile* file = data.file.get();
  const bool scores_in_file = file != nullptr && data.kind == LabelKind::kMultiLabel;
  NamedValues digests = {
      {name + space + "dataset of size", std::to_string(data.size())},
      {digest + "token ids",
       file != nullptr ? std::to_string(file->input_ids_digest()) : Digest(data.input_ids)},
      {digest + "token type ids", file != nullptr ? std::to_string(file->token_type_ids_digest())
                                                  : Digest(data.token_type_ids)},
      {digest + "lengths", Digest(data.offsets)},
      {digest + "labels",
       Digest(data.classes) +
           (scores_in_file ? std::to_string(file->scores_digest()) : Digest(data.scores))}};
  if (!data.sample_weights.empty())
    digests.emplace_back(digest + "sample weights", Digest(data.sample_weights));
  return digests;
}

}  // namespace lathe
