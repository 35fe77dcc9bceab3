#include "lathe/core/cuda/runtime/staging.h"

#include <algorithm>
#include <cstring>

#include "lathe/core/base/round_up.h"

namespace lathe::cuda {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

void UploadRing::WaitForOldest() {
  queue_.Wait(pieces_.front().mark);
  marks_.push_back(pieces_.front().mark);
  pieces_.pop_front();
}

int64_t UploadRing::Reserve(int64_t bytes) {
  int64_t begin = head_;
  if (begin + bytes > bytes_) {  // too little room is left at the end
    while (!pieces_.empty() && pieces_.front().begin >= head_) WaitForOldest();
    begin = 0;
  }
  // The oldest piece is the next one in the ring.
  while (!pieces_.empty() && pieces_.front().begin < begin + bytes && pieces_.front().end > begin) {
    WaitForOldest();
  }
  return begin;
}

void UploadRing::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  const std::lock_guard lock(mutex_);
  if (!tried_) ring_ = static_cast<char*>(queue_.AllocatePinned(bytes_));
  tried_ = true;
  if (ring_ == nullptr) {
    queue_.Copy(to, from, bytes, CopyQueue::Direction::kToDevice);
    queue_.Synchronize();
    return;
  }
  const int64_t most = bytes_ / 4 / kAlignment * kAlignment;
  for (int64_t done = 0; done < bytes; done += most) {
    const int64_t now = std::min(most, bytes - done);
    const int64_t begin = Reserve(now);
    if (marks_.empty()) marks_.push_back(queue_.NewMark());
    std::memcpy(ring_ + begin, static_cast<const char*>(from) + done, static_cast<size_t>(now));
    queue_.Copy(static_cast<char*>(to) + done, ring_ + begin, now, CopyQueue::Direction::kToDevice);
    head_ = begin + RoundUp(now, kAlignment);
    pieces_.push_back({begin, head_, marks_.back()});
    marks_.pop_back();
    queue_.Record(pieces_.back().mark);
  }
}

bool UploadPrefetcher::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return true;
  if (bytes > slot_bytes_) return false;
  const std::lock_guard lock(mutex_);
  if (!tried_) {
    tried_ = true;
    if (auto* memory = static_cast<char*>(work_.AllocateOnDevice(2 * slot_bytes_));
        memory != nullptr) {
      for (Slot& slot : slots_) {
        slot = {memory, ahead_.NewMark(), work_.NewMark()};
        memory += slot_bytes_;
      }
    }
  }
  Slot& slot = slots_[next_];
  if (slot.memory == nullptr) return false;
  next_ = 1 - next_;
  ahead_.WaitOnDevice(slot.read);  // the last use of this slot, two copies ago
  ring_.Copy(slot.memory, from, bytes);
  ahead_.Record(slot.filled);
  work_.WaitOnDevice(slot.filled);
  work_.CopyOnDevice(to, slot.memory, bytes);
  work_.Record(slot.read);
  return true;
}

void DownloadBuffer::Copy(void* to, const void* from, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!tried_) {
    tried_ = true;
    if (auto* memory = static_cast<char*>(queue_.AllocatePinned(2 * half_)); memory != nullptr) {
      for (int i = 0; i < 2; ++i) {
        marks_[i] = queue_.NewMark();
        halves_[i] = memory + i * half_;
      }
    }
  }
  if (halves_[0] == nullptr || bytes <= 0) {
    if (bytes > 0) queue_.Copy(to, from, bytes, CopyQueue::Direction::kToHost);
    queue_.Synchronize();
    return;
  }
  const auto size_at = [&](int64_t at) { return std::min(half_, bytes - at); };
  const auto start = [&](int64_t at, int half) {
    queue_.Copy(halves_[half], static_cast<const char*>(from) + at, size_at(at),
                CopyQueue::Direction::kToHost);
    queue_.Record(marks_[half]);
  };
  start(0, 0);
  int half = 0;
  for (int64_t at = 0; at < bytes; at += half_, half = 1 - half) {
    if (at + half_ < bytes) start(at + half_, 1 - half);
    queue_.Wait(marks_[half]);
    std::memcpy(static_cast<char*>(to) + at, halves_[half], static_cast<size_t>(size_at(at)));
  }
}

}  // namespace lathe::cuda
