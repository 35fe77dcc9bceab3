// Memory of a device, cached: tensors come and go all the time, while the device's own allocation
// waits for its work.
//
// Memory is taken from the device in segments, which are split into blocks as they are asked for;
// free neighbours become one block again. Requests up to 1 MiB share segments of 2 MiB, larger ones
// have segments of their own of at least 20 MiB, where small ones go if there is no room elsewhere.
// The smallest free block that suffices is taken.
//
// All work on the device goes to one stream, so a block may be handed out again while older work
// still uses it. Any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lathe::cuda {

// Where segments come from.
class PoolDevice {
 public:
  virtual ~PoolDevice() = default;
  // 512-byte aligned; null if there is no room. Other errors are thrown.
  virtual void* Allocate(int64_t bytes) = 0;
  // Waits for work that may use it. Never throws.
  virtual void Release(void* segment) = 0;
  // Whether a pool that finds no room may give free segments back. Recorded work may still use
  // them.
  virtual bool MayRelease() { return true; }
  struct Room {
    int64_t free = 0, total = 0;  // bytes
    int64_t recorded = 0;         // that other pools hold for recorded work
  };
  virtual Room Memory() = 0;
};

struct PoolStatistics {
  int64_t allocated = 0, peak_allocated = 0;  // bytes of blocks in use, as they were rounded up
  int64_t reserved = 0, peak_reserved = 0;    // bytes of segments
  int64_t segments = 0;
  int64_t largest_free = 0;  // bytes of the largest block that isn't in use
  int64_t allocations = 0;   // blocks handed out so far
  int64_t retries = 0;       // how often free segments were given back because there was no room
};

class Pool {
 public:
  // `device` must outlive the pool, which keeps its segments when it goes.
  explicit Pool(PoolDevice& device) : device_(device) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // At least `bytes`, 512-byte aligned. Throws ResourceExhausted if there is no room even after
  // free segments have been given back.
  void* Allocate(int64_t bytes);
  // What Allocate returned. Never throws.
  void Free(void* memory);
  // Gives segments without a block in use back to the device, whatever MayRelease says.
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

  // All with mutex_ held.
  FreeParts& FreePartsOf(bool small) { return free_[small ? 0 : 1]; }
  Parts::iterator Grow(int64_t bytes, bool small);
  Parts::iterator AddSegment(int64_t bytes, bool small);  // end() if there is no room
  void ReleaseFree();
  int64_t LargestFree() const;
  std::string WhyNoRoom(int64_t bytes);

  PoolDevice& device_;
  mutable std::mutex mutex_;
  std::map<char*, Segment> segments_;
  Parts parts_;
  FreeParts free_[2];
  PoolStatistics statistics_;
};

}  // namespace lathe::cuda
