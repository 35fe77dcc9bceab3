#include "lathe/distributed/job/dataset_digests.h"

#include <absl/strings/str_cat.h>

#include "lathe/core/base/philox.h"
#include "lathe/data/datasets/row_file.h"

namespace lathe {
namespace {

template <typename T>
uint64_t Digest(const std::vector<T>& values) {
  return HashName({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

}  // namespace

std::string FactName(DatasetFact fact, const std::string& name) {
  // In the order of DatasetFact.
  constexpr const char* kOf[] = {"dataset of size", "token ids", "token type ids",
                                 "lengths",         "labels",    "sample weights"};
  return absl::StrCat(fact == DatasetFact::kSize ? "" : "digest of ", name, name.empty() ? "" : " ",
                      kOf[static_cast<size_t>(fact)]);
}

NamedValues DatasetDigests(const TokenizedDataset& data, const std::string& name) {
  NamedValues digests;
  const auto add = [&](DatasetFact fact, auto... numbers) {
    digests.emplace_back(FactName(fact, name), absl::StrCat(numbers...));
  };
  // A file holds the digests that the same rows would have in memory.
  const RowFile* file = data.file.get();
  const bool scores_in_file = file != nullptr && data.kind == LabelKind::kMultiLabel;
  add(DatasetFact::kSize, data.size());
  add(DatasetFact::kTokenIds, file ? file->input_ids_digest() : Digest(data.input_ids));
  add(DatasetFact::kTokenTypeIds,
      file ? file->token_type_ids_digest() : Digest(data.token_type_ids));
  add(DatasetFact::kLengths, Digest(data.offsets));
  add(DatasetFact::kLabels, Digest(data.classes),
      scores_in_file ? file->scores_digest() : Digest(data.scores));
  if (!data.sample_weights.empty()) add(DatasetFact::kSampleWeights, Digest(data.sample_weights));
  return digests;
}

}  // namespace lathe
