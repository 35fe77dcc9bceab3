// Copies between the host's ordinary memory and a device, through memory that the device reaches by
// itself (pinned): a copy to the device is queued and the host goes on, without waiting for the
// work before it, and may change its own memory at once.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace lathe::cuda {

// A device's queue of work.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  // Pinned memory, 256-byte aligned, for good; null if there is none to be had.
  virtual void* AllocatePinned(int64_t bytes) = 0;
  // Queues a copy. On the host's side the memory must stay as it is until it has run.
  virtual void Copy(void* to, const void* from, int64_t bytes, bool to_device) = 0;
  // A place in the queue; recorded anew where it is needed again.
  using Mark = void*;
  virtual Mark NewMark() = 0;
  virtual void Record(Mark mark) = 0;
  // Until all is done that was queued before the mark.
  virtual void Wait(Mark mark) = 0;
  // Until all is done.
  virtual void Synchronize() = 0;

  // Of the device; null without room. For as long as the process lives.
  virtual void* AllocateOnDevice(int64_t bytes) = 0;
  // Queues a copy on the device.
  virtual void CopyOnDevice(void* to, const void* from, int64_t bytes) = 0;
  // What is queued here from now on waits for what was queued before the mark, wherever that is.
  virtual void Follow(Mark mark) = 0;
};

// To the device. The pinned memory is a ring of pieces: the host waits only when the ring is full
// of copies that haven't run. Any thread may call.
class UploadRing {
 public:
  // `queue` must outlive it. Memory is pinned at the first copy; without any, copies wait.
  UploadRing(CopyQueue& queue, int64_t bytes) : queue_(queue), bytes_(bytes) {}
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  // `from` may change once it returns. Larger copies than a quarter of the ring go in parts.
  void Copy(void* to, const void* from, int64_t bytes);

 private:
  struct Piece {
    int64_t begin, end;
    CopyQueue::Mark mark;  // after its copy
  };
  // Where so many bytes of the ring are free. With mutex_ held.
  int64_t Reserve(int64_t bytes);
  void WaitForOldest();

  CopyQueue& queue_;
  const int64_t bytes_;
  std::mutex mutex_;
  char* ring_ = nullptr;
  bool tried_ = false;
  int64_t head_ = 0;                    // where the next piece begins
  std::deque<Piece> pieces_;            // whose copies may not have run, oldest first
  std::vector<CopyQueue::Mark> marks_;  // free
};

// To the device, beside its work: the copy from the host goes to one of two places of its own on a
// queue of its own, and what is queued for the work is a copy from there. So the numbers of the
// next step arrive while the present one computes. Any thread may call.
class UploadAhead {
 public:
  // work, ahead: two queues that outlive it. slot_bytes: the most that one copy takes.
  UploadAhead(CopyQueue& work, CopyQueue& ahead, int64_t slot_bytes)
      : work_(work), ahead_(ahead), slot_bytes_(slot_bytes), ring_(ahead, 4 * slot_bytes) {}
  UploadAhead(const UploadAhead&) = delete;
  UploadAhead& operator=(const UploadAhead&) = delete;

  // Behind the work that is queued. `from` may change once it returns. False, and nothing is done:
  // too many bytes, or no memory for the two places.
  bool Copy(void* to, const void* from, int64_t bytes);

 private:
  struct Slot {
    void* memory = nullptr;
    CopyQueue::Mark filled = nullptr;  // in `ahead`
    CopyQueue::Mark read = nullptr;    // in `work`
  };

  CopyQueue& work_;
  CopyQueue& ahead_;
  const int64_t slot_bytes_;
  UploadRing ring_;
  std::mutex mutex_;
  Slot slots_[2];
  bool tried_ = false;
  int next_ = 0;
};

// To the host: one half of the memory is filled while the other is emptied. Any thread may call.
class DownloadBuffer {
 public:
  DownloadBuffer(CopyQueue& queue, int64_t bytes) : queue_(queue), half_(bytes / 2) {}
  DownloadBuffer(const DownloadBuffer&) = delete;
  DownloadBuffer& operator=(const DownloadBuffer&) = delete;

  // Waits for the work that is queued and for the copy.
  void Copy(void* to, const void* from, int64_t bytes);

 private:
  CopyQueue& queue_;
  const int64_t half_;
  std::mutex mutex_;
  char* halves_[2] = {};
  CopyQueue::Mark marks_[2] = {};
  bool tried_ = false;
};

}  // namespace lathe::cuda
