#include "lathe/data/datasets/row_file.h"

#include <nlohmann/json.hpp>

#include "lathe/core/json/json_number.h"
#include "lathe/data/column_files/running_hash.h"

namespace lathe {

uint32_t CheckOfRow(const RowData& row) {
  RunningHash hash;
  hash.Add(row.input_ids.data(), row.input_ids.size() * sizeof row.input_ids[0]);
  hash.Add(row.token_type_ids.data(), row.token_type_ids.size());
  hash.Add(row.label_flags.data(), row.label_flags.size());
  return static_cast<uint32_t>(hash.value() ^ hash.value() >> 32);
}

RowFile::RowFile(const std::string& path)
    : file_(path),
      input_ids_(file_.Find("input_ids")),
      token_type_ids_(file_.Find("token_type_ids")),
      label_flags_(file_.Find("label_flags")),
      checks_(file_.ReadWhole<uint32_t>("row_checks")) {
  if (input_ids_ == nullptr ||
      (input_ids_->type != ElementType::kU16 && input_ids_->type != ElementType::kU32))
    throw file_.Damaged("it has no column \"input_ids\" of this type");
  try {
    const nlohmann::json& about = file_.about();
    num_labels_ = GetWholeNumber<int64_t>(about.at("num_labels"));
    const nlohmann::json& digests = about.at("digests");
    input_ids_digest_ = GetWholeNumber<uint64_t>(digests.at("input_ids"));
    token_type_ids_digest_ = GetWholeNumber<uint64_t>(digests.at("token_type_ids"));
    scores_digest_ = GetWholeNumber<uint64_t>(digests.at("scores"));
  } catch (const nlohmann::json::exception& e) {
    throw file_.Damaged(e.what());
  }
}

RowData RowFile::Read(int64_t row, int64_t begin, int64_t end) const {
  const int64_t length = end - begin;
  const auto size = static_cast<size_t>(length);
  RowData data;
  data.input_ids.resize(size);
  if (input_ids_->type == ElementType::kU16) {
    std::vector<uint16_t> narrow(size);
    file_.Read(*input_ids_, 2 * begin, 2 * length, narrow.data());
    data.input_ids.assign(narrow.begin(), narrow.end());
  } else {
    file_.Read(*input_ids_, 4 * begin, 4 * length, data.input_ids.data());
  }
  data.token_type_ids.resize(size);
  if (token_type_ids_ != nullptr)
    file_.Read(*token_type_ids_, begin, length, data.token_type_ids.data());
  if (label_flags_ != nullptr) {
    data.label_flags.resize(static_cast<size_t>(num_labels_));
    file_.Read(*label_flags_, row * num_labels_, num_labels_, data.label_flags.data());
  }
  if (CheckOfRow(data) != checks_.at(static_cast<size_t>(row)))
    throw file_.Damaged("row " + std::to_string(row) + " has another digest");
  return data;
}

}  // namespace lathe
