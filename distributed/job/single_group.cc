#include "lathe/distributed/job/single_group.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

class SingleGroup : public ProcessGroup {
 public:
  SingleGroup() : ProcessGroup(0, 1) {}
  void AllReduce(std::span<float>, ReduceOp) override {}
  void AllReduce(std::span<double>, ReduceOp) override {}
  void AllReduce(std::span<int64_t>, ReduceOp) override {}
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CheckGatherSizes(mine, all);
    std::copy(mine.begin(), mine.end(), all.begin());
  }
  void Broadcast(std::span<std::byte>, int root) override { CheckRoot(root); }
  void Barrier() override {}
  void SetPhase(const std::string&) override {}
  void PostMessage(const std::string& key, const std::string& value) override {
    messages_[key] = value;
  }
  std::string AwaitMessage(const std::string& key, int /*from*/) override {
    Check(messages_.contains(key), "await", "there is no other rank that could post \"", key, "\"");
    return messages_.at(key);
  }
  std::optional<std::string> FindMessage(const std::string& key,
                                         std::chrono::milliseconds) override {
    if (!messages_.contains(key)) return std::nullopt;
    return messages_.at(key);
  }

 private:
  std::map<std::string, std::string> messages_;
};

}  // namespace

std::shared_ptr<ProcessGroup> MakeSingleGroup() { return std::make_shared<SingleGroup>(); }

}  // namespace lathe
