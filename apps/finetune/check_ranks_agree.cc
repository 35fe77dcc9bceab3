#include "lathe/apps/finetune/check_ranks_agree.h"

#include <absl/status/status.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/job/dataset_digests.h"

namespace lathe {
namespace {

// Adds each value of the file under its keys: "config.json id2label.1".
void AddConfig(const nlohmann::json& config, NamedValues& values) {
  const nlohmann::json flat = config.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string keys = pointer.substr(std::min<size_t>(1, pointer.size()));
    std::replace(keys.begin(), keys.end(), '/', '.');
    std::replace(keys.begin(), keys.end(), '\t', ' ');
    values.emplace_back("config.json " + keys, DumpJson(value));
  }
}

// Throws if ranks of one machine name different files, because the machine's first process reads
// the files for all.
void CheckSameFiles(const NamedValues& files, Accelerator& accelerator) {
  const nlohmann::json mine = {{"main", accelerator.local_main_process_index()},
                               {"files", std::map(files.begin(), files.end())}};
  const std::vector<std::string> all = accelerator.GatherObject(DumpJson(mine));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto theirs = ParseJson(all[rank]);
    const auto main = theirs.at("main").get<size_t>();
    const nlohmann::json expected = ParseJson(all[main]).at("files");
    const nlohmann::json& given = theirs.at("files");
    if (given == expected) continue;
    const auto changed = [](const nlohmann::json& from, const nlohmann::json& to) {
      return std::find_if(from.items().begin(), from.items().end(), [&](const auto& file) {
        return nlohmann::json(to.value(file.key(), "")) != file.value();
      });
    };
    auto first = changed(given, expected);
    if (first == given.items().end()) first = changed(expected, given);
    const std::string option = first.key();
    const auto text = [&](const nlohmann::json& of) {
      return of.contains(option) ? option + " " + of.at(option).get<std::string>() : "no " + option;
    };
    throw Error(absl::StatusCode::kFailedPrecondition,
                "[preflight] rank " + std::to_string(rank) + " has " + text(given) + " but rank " +
                    std::to_string(main) + " of the same machine has " + text(expected),
                "run the same program with the same files on all ranks of a machine");
  }
}

}  // namespace

void CheckRanksAgree(const ParsedOptions& parsed, const Task& task, Accelerator& accelerator) {
  if (!accelerator.use_distributed()) return;
  CheckSameFiles(parsed.files, accelerator);
  NamedValues values = parsed.shared;
  AddConfig(task.model->config().json(), values);
  const std::vector<std::string>& labels = task.labels.names();
  values.emplace_back("number of labels", std::to_string(labels.size()));
  for (size_t i = 0; i < labels.size(); ++i) {
    values.emplace_back("label " + std::to_string(i), labels[i]);
  }
  for (const auto& [name, digest] : task.tokenizer_digests) {
    values.emplace_back("digest of the tokenizer's " + name, std::to_string(digest));
  }
  for (const auto& [name, data] :
       {std::pair("validation", &task.validation), std::pair("test", &task.test)}) {
    if (data->dataset == nullptr) continue;
    const NamedValues digests = DatasetDigests(*data->dataset, name);
    values.insert(values.end(), digests.begin(), digests.end());
  }
  accelerator.CheckSame(values);
}

}  // namespace lathe
