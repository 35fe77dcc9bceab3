#include "lathe/core/base/asked_by.h"

namespace lathe {
namespace {

constinit thread_local AskedBy::Asker current;

}  // namespace

AskedBy::AskedBy(const Asker& asker) : before_(current) { current = asker; }
AskedBy::~AskedBy() { current = before_; }

AskedBy AskedBy::Op(const char* op) {
  Asker asker = current;
  if (asker.op == nullptr) {
    asker.op = op;
    asker.what = nullptr;
    asker.is_state = false;
  }
  return AskedBy(asker);
}

AskedBy AskedBy::Backward(const char* op) {
  return AskedBy(Asker{.op = op, .pass = Pass::kBackward, .is_recorded = current.is_recorded});
}

AskedBy AskedBy::Recomputation() {
  return AskedBy(Asker{.pass = Pass::kRecomputed, .is_recorded = current.is_recorded});
}

AskedBy AskedBy::Recording() {
  Asker asker = current;
  asker.is_recorded = true;
  return AskedBy(asker);
}

AskedBy AskedBy::State(const char* what) {
  Asker asker = current;
  asker.what = what;
  asker.is_state = true;
  return AskedBy(asker);
}

AskedBy AskedBy::Buffer(const char* what) {
  Asker asker = current;
  asker.what = what;
  asker.is_state = false;
  return AskedBy(asker);
}

std::string WhoAsks() {
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

bool AskedForState() { return current.is_state; }

bool AskedByForwardOp() {
  return current.op != nullptr && current.what == nullptr &&
         current.pass == AskedBy::Pass::kForward;
}

}  // namespace lathe
