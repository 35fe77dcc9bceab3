#include "lathe/core/base/allocation_tag.h"

namespace lathe {
namespace {

constinit thread_local AllocationTag::AllocationSource current;

}  // namespace

AllocationTag::AllocationTag(const AllocationSource& allocation_source) : before_(current) {
  current = allocation_source;
}
AllocationTag::~AllocationTag() { current = before_; }

AllocationTag AllocationTag::Op(const char* op) {
  AllocationSource allocation_source = current;
  if (allocation_source.op == nullptr) {
    allocation_source.op = op;
    allocation_source.what = nullptr;
    allocation_source.is_state = false;
  }
  return AllocationTag(allocation_source);
}

AllocationTag AllocationTag::Backward(const char* op) {
  return AllocationTag(
      AllocationSource{.op = op, .pass = Pass::kBackward, .is_recorded = current.is_recorded});
}

AllocationTag AllocationTag::Recomputation() {
  return AllocationTag(
      AllocationSource{.pass = Pass::kRecomputed, .is_recorded = current.is_recorded});
}

AllocationTag AllocationTag::Recording() {
  AllocationSource allocation_source = current;
  allocation_source.is_recorded = true;
  return AllocationTag(allocation_source);
}

AllocationTag AllocationTag::State(const char* what) {
  AllocationSource allocation_source = current;
  allocation_source.what = what;
  allocation_source.is_state = true;
  return AllocationTag(allocation_source);
}

AllocationTag AllocationTag::Buffer(const char* what) {
  AllocationSource allocation_source = current;
  allocation_source.what = what;
  allocation_source.is_state = false;
  return AllocationTag(allocation_source);
}

std::string CurrentAllocationTag() {
  std::string who;
  if (current.what != nullptr) who = current.what;
  if (current.op != nullptr) {
    constexpr const char* kPasses[] = {" (forward)", " (forward, recomputed)", " (backward)"};
    if (!who.empty()) who += " in ";
    who += current.op;
    who += kPasses[static_cast<int>(current.pass)];
  }
  if (!who.empty() && current.is_recorded) who += ", recorded as a CUDA graph,";
  return who;
}

bool AllocatesState() { return current.is_state; }

bool AllocatesInForwardOp() {
  return current.op != nullptr && current.what == nullptr &&
         current.pass == AllocationTag::Pass::kForward;
}

}  // namespace lathe
