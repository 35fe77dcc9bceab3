// Copies between the host's ordinary memory and a device, through pinned memory, which the device
// can reach by itself. A copy to the device is only queued. The host goes on without waiting for
// earlier work, and may change its own memory at once.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace lathe::cuda {

// A device's queue of work.
class CopyQueue {
 public:
  enum class Direction { kToDevice, kToHost };

  virtual ~CopyQueue() = default;
  // Returns pinned memory, 256-byte aligned, which is never freed. Returns null if there is none.
  virtual void* AllocatePinned(int64_t bytes) = 0;
  // Queues a copy. The memory on the host must not change until the copy has run.
  virtual void Copy(void* to, const void* from, int64_t bytes, Direction direction) = 0;
  // A position in the queue. Record sets it, again and again if needed.
  using Mark = void*;
  virtual Mark NewMark() = 0;
  virtual void Record(Mark mark) = 0;
  // Waits until all work queued before the mark is done.
  virtual void Wait(Mark mark) = 0;
  // Waits until all work is done.
  virtual void Synchronize() = 0;

  // Returns device memory that lives as long as the process, or null if there is no room.
  virtual void* AllocateOnDevice(int64_t bytes) = 0;
  // Queues a copy on the device.
  virtual void CopyOnDevice(void* to, const void* from, int64_t bytes) = 0;
  // Makes work queued here from now on wait for the work before the mark, which may be in another
  // queue.
  virtual void WaitOnDevice(Mark mark) = 0;
};

// Copies to the device. The pinned memory is a ring of pieces. The host waits only if the ring is
// full of copies that haven't run. Any thread may call.
class UploadRing {
 public:
  // `queue` must outlive the ring. The first copy pins the memory. Without pinned memory, copies
  // wait until they have run.
  UploadRing(CopyQueue& queue, int64_t bytes) : queue_(queue), bytes_(bytes) {}
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  // `from` may change once this returns. Copies larger than a quarter of the ring are split.
  void Copy(void* to, const void* from, int64_t bytes);

 private:
  struct Piece {
    int64_t begin, end;
    CopyQueue::Mark mark;  // behind the piece's copy
  };
  // Returns the beginning of `bytes` free bytes in the ring. The caller holds mutex_.
  int64_t Reserve(int64_t bytes);
  void WaitForOldest();

  CopyQueue& queue_;
  const int64_t bytes_;
  std::mutex mutex_;
  char* ring_ = nullptr;
  bool tried_ = false;
  int64_t head_ = 0;                    // where the next piece begins
  std::deque<Piece> pieces_;            // their copies may not have run; oldest first
  std::vector<CopyQueue::Mark> marks_;  // free
};

// Copies to the device while its work goes on. The copy from the host goes to one of two slots, on
// a separate queue. The work's queue only has a copy from that slot. So the inputs of the next step
// arrive while the present step computes. Any thread may call.
class UploadPrefetcher {
 public:
  // Both queues must outlive this. slot_bytes is the size of the largest copy.
  UploadPrefetcher(CopyQueue& work, CopyQueue& ahead, int64_t slot_bytes)
      : work_(work), ahead_(ahead), slot_bytes_(slot_bytes), ring_(ahead, 4 * slot_bytes) {}
  UploadPrefetcher(const UploadPrefetcher&) = delete;
  UploadPrefetcher& operator=(const UploadPrefetcher&) = delete;

  // Queues the copy behind the queued work. `from` may change once this returns. Returns false
  // without doing anything if there are too many bytes, or no memory for the two slots.
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

// Copies to the host. One half of the memory is filled while the other is emptied. Any thread may
// call.
class DownloadBuffer {
 public:
  DownloadBuffer(CopyQueue& queue, int64_t bytes) : queue_(queue), half_(bytes / 2) {}
  DownloadBuffer(const DownloadBuffer&) = delete;
  DownloadBuffer& operator=(const DownloadBuffer&) = delete;

  // Waits for the queued work and for the copy.
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
