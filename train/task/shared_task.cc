#include "lathe/train/task/shared_task.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/datasets/dataset_file.h"
#include "lathe/data/datasets/row_file.h"
#include "lathe/train/task/labels.h"

namespace lathe {
namespace {

void WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw FileError("shared memory for the other processes", errno);
    at += written;
    size -= static_cast<size_t>(written);
  }
}

void ReadAll(int fd, void* data, size_t size, const std::string& path) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = read(fd, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path, errno);
    Check(got > 0, "shared_task", path, " is cut off");
    at += got;
    size -= static_cast<size_t>(got);
  }
}

// Calls f for every array of a dataset, always in the same order.
template <typename Dataset, typename F>
void ForEachArray(Dataset& dataset, F f) {
  f(dataset.input_ids);
  f(dataset.token_type_ids);
  f(dataset.offsets);
  f(dataset.classes);
  f(dataset.scores);
  f(dataset.sample_weights);
}

nlohmann::json Describe(const TaskData& data) {
  if (data.dataset == nullptr) return nullptr;
  const TokenizedDataset& d = *data.dataset;
  if (d.file != nullptr) return {{"path", data.path}, {"file", d.file->columns().PathForOthers()}};
  nlohmann::json sizes = nlohmann::json::array();
  ForEachArray(d, [&](const auto& array) { sizes.push_back(array.size()); });
  return {{"path", data.path},
          {"sizes", sizes},
          {"kind", static_cast<int>(d.kind)},
          {"has_labels", d.has_labels},
          {"num_labels", d.num_labels},
          {"truncated", d.num_truncated}};
}

TaskData ReadData(const nlohmann::json& json, int fd, const std::string& path) {
  if (json.is_null()) return {};
  if (json.contains("file")) {
    return {json.at("path"), std::make_shared<const TokenizedDataset>(
                                 OpenDatasetFile(json.at("file").get<std::string>()))};
  }
  TokenizedDataset d;
  d.kind = static_cast<LabelKind>(json.at("kind").get<int>());
  d.has_labels = json.at("has_labels");
  d.num_labels = json.at("num_labels");
  d.num_truncated = json.at("truncated");
  size_t next = 0;
  ForEachArray(d, [&](auto& array) {
    array.resize(json.at("sizes").at(next++).get<size_t>());
    ReadAll(fd, array.data(), array.size() * sizeof array[0], path);
  });
  return {json.at("path"), std::make_shared<const TokenizedDataset>(std::move(d))};
}

}  // namespace

SharedTask::SharedTask(const Task& task) : fd_(memfd_create("lathe task", MFD_CLOEXEC)) {
  if (fd_ < 0) throw FileError("shared memory for the other processes", errno);
  const nlohmann::json json = {{"kind", static_cast<int>(task.labels.kind())},
                               {"names", task.labels.names()},
                               {"first", task.text_columns.first},
                               {"second", task.text_columns.second},
                               {"columns", FormatTrainedColumns(task.columns)},
                               {"max_length", task.max_length},
                               {"tokenizer_digests", task.tokenizer_digests},
                               {"train", Describe(task.train)},
                               {"validation", Describe(task.validation)},
                               {"test", Describe(task.test)}};
  const std::string header = DumpJson(json);
  const uint64_t size = header.size();
  WriteAll(fd_, &size, sizeof size);
  WriteAll(fd_, header.data(), header.size());
  for (const TaskData* data : {&task.train, &task.validation, &task.test}) {
    if (data->dataset == nullptr || data->dataset->file != nullptr) continue;
    ForEachArray(*data->dataset, [&](const auto& array) {
      WriteAll(fd_, array.data(), array.size() * sizeof array[0]);
    });
  }
}

SharedTask::~SharedTask() { close(fd_); }

std::string SharedTask::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

void ReadSharedTask(const std::string& path, Task& task) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw FileError(path, errno);
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  uint64_t size = 0;
  ReadAll(fd, &size, sizeof size, path);
  std::string header(size, '\0');
  ReadAll(fd, header.data(), header.size(), path);
  const nlohmann::json json = ParseJson(header);
  task.labels = MakeLabelSet(static_cast<LabelKind>(json.at("kind").get<int>()), json.at("names"));
  task.text_columns = {json.at("first"), json.at("second")};
  task.columns = ParseTrainedColumns(json.at("columns"), path);
  task.max_length = json.at("max_length");
  task.tokenizer_digests = json.at("tokenizer_digests");
  task.train = ReadData(json.at("train"), fd, path);
  task.validation = ReadData(json.at("validation"), fd, path);
  task.test = ReadData(json.at("test"), fd, path);
}

}  // namespace lathe
