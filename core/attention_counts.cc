#include "lathe/core/attention_counts.h"

#include <mutex>
#include <set>

namespace lathe {
namespace {

std::mutex mutex;
AttentionCounts counts;

std::set<std::string>& Reasons() {
  static auto* reasons = new std::set<std::string>;
  return *reasons;
}

}  // namespace

AttentionCounts GetAttentionCounts() {
  const std::lock_guard lock(mutex);
  return counts;
}

void CountOwnAttention() {
  const std::lock_guard lock(mutex);
  ++counts.own;
}

void CountLibraryAttention() {
  const std::lock_guard lock(mutex);
  ++counts.library;
}

bool NoteWhyNotLibrary(const std::string& why) {
  const std::lock_guard lock(mutex);
  counts.why_not_library = why;
  return Reasons().insert(why).second;
}

}  // namespace lathe
