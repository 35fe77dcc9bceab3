#include "lathe/distributed/testing/reference_group.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace lathe {
namespace {

class ReferenceGroup : public ProcessGroup {
 public:
  ReferenceGroup(int rank, int size, std::string folder)
      : ProcessGroup(rank, size), folder_(std::move(folder)) {}

  void AllReduce(std::span<float> data, ReduceOp op) override { Reduce<double>(data, op); }
  void AllReduce(std::span<double> data, ReduceOp op) override { Reduce<double>(data, op); }
  void AllReduce(std::span<int64_t> data, ReduceOp op) override { Reduce<int64_t>(data, op); }

  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CheckGatherSizes(mine, all);
    const std::string number = std::to_string(next_++);
    PostMessage(number + "." + std::to_string(rank()),
                {reinterpret_cast<const char*>(mine.data()), mine.size()});
    for (int other = 0; other < size(); ++other) {
      const std::string theirs = AwaitMessage(number + "." + std::to_string(other), other);
      std::copy_n(reinterpret_cast<const std::byte*>(theirs.data()), theirs.size(),
                  all.data() + mine.size() * static_cast<size_t>(other));
    }
  }

  void Broadcast(std::span<std::byte> data, int root) override {
    CheckRoot(root);
    std::vector<std::byte> all(data.size() * static_cast<size_t>(size()));
    AllGather(data, all);
    std::copy_n(all.data() + data.size() * static_cast<size_t>(root), data.size(), data.data());
  }

  void Barrier() override { AllGather({}, {}); }
  void SetPhase(const std::string&) override {}

  void PostMessage(const std::string& key, const std::string& value) override {
    const std::string path = folder_ + "/" + key;
    std::ofstream(path + ".part", std::ios::binary) << value;
    std::filesystem::rename(path + ".part", path);  // so that the file is there whole or not at all
  }

  std::string AwaitMessage(const std::string& key, int /*from*/) override {
    for (;;) {
      if (auto value = FindMessage(key, std::chrono::seconds(1))) return *std::move(value);
    }
  }

  std::optional<std::string> FindMessage(const std::string& key,
                                         std::chrono::milliseconds time) override {
    const std::string path = folder_ + "/" + key;
    const auto deadline = std::chrono::steady_clock::now() + time;
    while (!std::filesystem::exists(path)) {
      if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  template <typename Wide, typename T>
  void Reduce(std::span<T> data, ReduceOp op) {
    std::vector<T> all(data.size() * static_cast<size_t>(size()));
    AllGather(std::as_bytes(data), std::as_writable_bytes(std::span(all)));
    for (size_t i = 0; i < data.size(); ++i) {
      Wide result = static_cast<Wide>(all[i]);
      for (size_t at = i + data.size(); at < all.size(); at += data.size()) {
        const Wide other = static_cast<Wide>(all[at]);
        result = op == ReduceOp::kSum   ? result + other
                 : op == ReduceOp::kMax ? std::max(result, other)
                                        : std::min(result, other);
      }
      data[i] = static_cast<T>(result);
    }
  }

  std::string folder_;
  int64_t next_ = 0;
};

}  // namespace

std::shared_ptr<ProcessGroup> MakeReferenceGroup(int rank, int size, const std::string& folder) {
  return std::make_shared<ReferenceGroup>(rank, size, folder);
}

}  // namespace lathe
