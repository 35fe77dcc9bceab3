// A cache of device memory. Tensors come and go all the time, but the device's own allocation waits
// for its work.
//
// The pool takes segments from the device and splits them into blocks on demand. Adjacent free
// blocks are merged. Requests up to 1 MiB share segments of 2 MiB. Larger ones have separate
// segments of at least 20 MiB, which also serve small requests if there is no room elsewhere. A
// request takes the smallest free block that suffices.
//
// All work on the device goes to one stream, so a block may be handed out again while older work
// still uses it. Any thread may call these functions.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lathe::cuda {

// The source of segments.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Returns memory that is 512-byte aligned, or null if there is no room. Throws for other errors.
  virtual void* Allocate(int64_t bytes) = 0;
  // Gives a segment back, after waiting for work that may use it. Never throws.
  virtual void Release(void* segment) = 0;
  // Returns true if a pool without room may give free segments back. If not, recorded work may
  // still use them.
  virtual bool MayRelease() { return true; }
  struct Room {
    int64_t free = 0, total = 0;  // bytes
    int64_t recorded = 0;         // bytes that other pools hold for recorded work
  };
  virtual Room Memory() = 0;
};

struct PoolStatistics {
  int64_t allocated = 0, peak_allocated = 0;  // bytes of used blocks, rounded up
  int64_t reserved = 0, peak_reserved = 0;    // bytes of segments
  int64_t segments = 0;
  int64_t largest_free = 0;  // bytes of the largest free block
  int64_t allocations = 0;   // blocks handed out so far
  int64_t retries = 0;       // times that free segments were given back for lack of room
};

class Pool {
 public:
  // `device` must outlive the pool. The pool's destructor doesn't give segments back.
  explicit Pool(SegmentSource& device) : device_(device) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Returns at least `bytes`, 512-byte aligned. Throws ResourceExhausted if there is no room even
  // after free segments have been given back.
  void* Allocate(int64_t bytes);
  // Frees a block that Allocate returned. Never throws.
  void Free(void* memory);
  // Gives all segments without a used block back to the device, even if MayRelease returns false.
  void ReleaseFreeSegments();

  PoolStatistics Statistics() const;
  void ResetPeaks();  // to what is used now

  struct Block {
    char* begin;
    int64_t bytes;
    char* segment;
    bool used;
  };
  std::vector<Block> Blocks() const;  // by address

 private:
  struct Part {
    int64_t bytes;
    char* segment;  // where it begins
    bool used;
  };
  using Parts = std::map<char*, Part>;                    // by address
  using FreeParts = std::set<std::pair<int64_t, char*>>;  // by size, then address
  struct Segment {
    int64_t bytes;
    bool small;
  };

  // Callers of these hold mutex_.
  FreeParts& FreePartsOf(bool small) { return free_[small ? 0 : 1]; }
  Parts::iterator Grow(int64_t bytes, bool small);
  Parts::iterator AddSegment(int64_t bytes, bool small);  // end() if there is no room
  void ReleaseFree();
  int64_t LargestFree() const;
  std::string OutOfMemoryMessage(int64_t bytes);

  SegmentSource& device_;
  mutable std::mutex mutex_;
  std::map<char*, Segment> segments_;
  Parts parts_;
  FreeParts free_[2];
  PoolStatistics statistics_;
};

}  // namespace lathe::cuda
