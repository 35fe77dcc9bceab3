// A dataset of three samples as a column file without HDF5's part, so that its bytes follow from
// this source alone (data/datasets/dataset_file.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/column_files/column_file.h"
#include "lathe/data/column_files/running_hash.h"
#include "lathe/data/datasets/row_file.h"

namespace lathe::fuzz {

struct SmallDataset {
  std::string body;          // the columns' chunks
  nlohmann::json directory;  // what the file says of them
};

inline SmallDataset MakeSmallDataset() {
  SmallDataset file;
  nlohmann::json columns = nlohmann::json::array();
  const auto add = [&]<typename T>(const char* name, const std::vector<T>& values) {
    std::string chunk(static_cast<size_t>(kColumnChunkBytes), '\0');
    std::memcpy(chunk.data(), values.data(), values.size() * sizeof(T));
    RunningHash hash;
    hash.Add(chunk.data(), chunk.size());
    columns.push_back({{"name", name},
                       {"type", static_cast<int>(ElementTypeOf<T>())},
                       {"size", values.size()},
                       {"addresses", {file.body.size()}},
                       {"digests", {hash.value()}}});
    file.body += chunk;
  };
  const std::vector<std::vector<int32_t>> rows = {{2, 7, 3}, {2, 3}, {2, 9, 9, 3}};
  std::vector<uint16_t> ids;
  std::vector<uint32_t> lengths, checks;
  for (const std::vector<int32_t>& row : rows) {
    ids.insert(ids.end(), row.begin(), row.end());
    lengths.push_back(static_cast<uint32_t>(row.size()));
    checks.push_back(CheckOfRow(
        {.input_ids = row, .token_type_ids = std::vector<uint8_t>(row.size()), .label_flags = {}}));
  }
  add("input_ids", ids);
  add("lengths", lengths);
  add("row_checks", checks);
  add("labels", std::vector<int64_t>{0, 1, 0});
  file.directory = {
      {"body", file.body.size()},
      {"columns", std::move(columns)},
      {"about",
       {{"kind", 0},
        {"num_labels", 2},
        {"has_labels", true},
        {"num_truncated", 0},
        {"extent", {{"longest", 4}, {"largest_id", 9}, {"largest_type", 0}}},
        {"digests", {{"input_ids", 1}, {"token_type_ids", 2}, {"scores", 3}}},
        {"task", {{"key", "k"}, {"label_names", {"no", "yes"}}, {"columns", {"sentence", ""}}}}}}};
  return file;
}

}  // namespace lathe::fuzz
