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

std::string FactName(DatasetFact fact, const std::string& name) {
  const std::string set = name + (name.empty() ? "" : " ");
  switch (fact) {
    case DatasetFact::kSize:
      return set + "dataset of size";
    case DatasetFact::kTokenIds:
      return "digest of " + set + "token ids";
    case DatasetFact::kTokenTypeIds:
      return "digest of " + set + "token type ids";
    case DatasetFact::kLengths:
      return "digest of " + set + "lengths";
    case DatasetFact::kLabels:
      return "digest of " + set + "labels";
    case DatasetFact::kSampleWeights:
      return "digest of " + set + "sample weights";
  }
  return set;
}

NamedValues DatasetDigests(const TokenizedDataset& data, const std::string& name) {
  NamedValues digests;
  const auto add = [&](DatasetFact fact, const std::string& value) {
    digests.emplace_back(FactName(fact, name), value);
  };
  // A file holds the digests that the same rows would have in memory.
  const RowFile* file = data.file.get();
  const bool scores_in_file = file != nullptr && data.kind == LabelKind::kMultiLabel;
  add(DatasetFact::kSize, std::to_string(data.size()));
  add(DatasetFact::kTokenIds,
      file != nullptr ? std::to_string(file->input_ids_digest()) : Digest(data.input_ids));
  add(DatasetFact::kTokenTypeIds, file != nullptr ? std::to_string(file->token_type_ids_digest())
                                                  : Digest(data.token_type_ids));
  add(DatasetFact::kLengths, Digest(data.offsets));
  add(DatasetFact::kLabels,
      Digest(data.classes) +
          (scores_in_file ? std::to_string(file->scores_digest()) : Digest(data.scores)));
  if (!data.sample_weights.empty()) add(DatasetFact::kSampleWeights, Digest(data.sample_weights));
  return digests;
}

}  // namespace lathe
