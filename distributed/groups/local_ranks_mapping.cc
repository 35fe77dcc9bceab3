// The part of LocalRanks that lets ranks map each other's memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "lathe/core/pages.h"
#include "lathe/distributed/groups/local_ranks_internal.h"

namespace lathe {

char* MapFileOf(pid_t pid, int file, int64_t bytes, bool writes) {
  if (file < 0) return nullptr;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
  const int opened = open(path.c_str(), (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (opened < 0) return nullptr;
  char* const pages = MapPages(bytes, opened, writes);
  close(opened);
  return pages;
}

LocalRanks::ExposedMemory::~ExposedMemory() {
  for (char* view : views) {
    if (view != nullptr) munmap(view, bytes);
  }
}

void LocalRanks::PublishLocation(Part& part, const char* data, size_t bytes) const {
  part.exposed = 0;
  for (const auto& one : exposed_) {
    const std::shared_ptr<const ExposedMemory> exposed = one.lock();
    const std::shared_ptr<Storage> storage = exposed == nullptr ? nullptr : exposed->storage.lock();
    if (storage == nullptr || storage->sharing() != Storage::Sharing::kOthersRead) continue;
    // Addresses are subtracted as numbers, since the data may lie anywhere. An address before the
    // storage's gives an offset that is too large.
    const uintptr_t begin =
        reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(storage->data());
    if (begin > exposed->bytes || bytes > exposed->bytes - begin) continue;
    part.exposed = exposed->id;
    part.begin = begin;
  }
}

// Returns the data that another rank has in this call if that rank exposes it, else null.
const char* LocalRanks::ViewOf(int place) const {
  const Part& part = PartOf(place);
  if (part.exposed == 0) return nullptr;
  for (const auto& one : exposed_) {
    const std::shared_ptr<const ExposedMemory> exposed = one.lock();
    if (exposed != nullptr && exposed->id == part.exposed)
      return exposed->views[static_cast<size_t>(place)] + part.begin;
  }
  return nullptr;
}

template <typename T>
std::vector<T> LocalRanks::GatherEach(const T& mine, const OnWait& on_wait) {
  Publish({}, &mine, sizeof mine, DataSize::kSmall, on_wait);
  std::vector<T> all(static_cast<size_t>(size_));
  for (int place = 0; place < size_; ++place)
    Read(place, 0, &all[static_cast<size_t>(place)], sizeof(T));
  return all;
}

namespace {

// Bytes of a storage that are to move into a memory file: their number, and the file. Ranks tell
// each other theirs.
struct Offer {
  int64_t bytes = 0;
  int file = -1;
};

// A memory file with a storage's bytes, and its pages. The destructor closes the file.
class MemoryMove {
 public:
  explicit MemoryMove(int64_t bytes) : offer_{bytes} {}
  ~MemoryMove() {
    if (offer_.file >= 0) close(offer_.file);
    if (pages_ != nullptr) munmap(pages_, static_cast<size_t>(offer_.bytes));
  }
  MemoryMove(const MemoryMove&) = delete;
  MemoryMove& operator=(const MemoryMove&) = delete;

  void CopyToFile(const char* name, const Storage& storage) {
    if (offer_.bytes == 0) return;
    const MemoryFile made = MakeMemoryFile(name, offer_.bytes);
    offer_.file = made.file;
    pages_ = made.pages;
    if (pages_ == nullptr) return;
    std::memcpy(pages_, storage.data(),
                static_cast<size_t>(std::min(offer_.bytes, storage.bytes())));
  }
  void MapFile(pid_t pid, const Offer& theirs) {
    if (theirs.bytes == offer_.bytes) pages_ = MapFileOf(pid, theirs.file, offer_.bytes);
  }
  const Offer& offer() const { return offer_; }
  bool has_pages() const { return pages_ != nullptr; }
  // Puts the pages in the place of the storage's own.
  void Into(Storage& storage, Storage::Sharing sharing) {
    storage.MapShared(std::exchange(pages_, nullptr), offer_.bytes, sharing);
  }

 private:
  Offer offer_;
  char* pages_ = nullptr;
};

}  // namespace

void LocalRanks::Share(Storage& storage, const OnWait& on_wait) {
  MemoryMove move(storage.shareable_bytes());
  if (place_ == 0) move.CopyToFile("lathe parameters", storage);
  const std::vector<Offer> offers = GatherEach(move.offer(), on_wait);
  if (place_ != 0) move.MapFile(slots_[0].pid, offers[0]);
  const std::vector<uint8_t> have = GatherEach(uint8_t{move.has_pages()}, on_wait);
  if (std::ranges::count(have, 0) == 0) move.Into(storage, Storage::Sharing::kOthersReadAndWrite);
}

std::shared_ptr<const void> LocalRanks::Expose(const std::shared_ptr<Storage>& storage,
                                               int64_t bytes, const OnWait& on_wait) {
  const int64_t pages = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  MemoryMove move(std::min(pages, storage->shareable_bytes()));
  move.CopyToFile("lathe gradients", *storage);
  const std::vector<Offer> offers = GatherEach(move.offer(), on_wait);
  auto exposed = std::make_shared<ExposedMemory>();
  exposed->id = ++times_exposed_;
  exposed->storage = storage;
  exposed->bytes = static_cast<size_t>(move.offer().bytes);
  bool have_all = move.has_pages();
  for (int place = 0; place < size_; ++place) {
    const Offer& theirs = offers[static_cast<size_t>(place)];
    char* view = nullptr;
    if (place != place_ && have_all && theirs.bytes == move.offer().bytes)
      view = MapFileOf(slots_[static_cast<size_t>(place)].pid, theirs.file, theirs.bytes,
                       /*writes=*/false);
    have_all = have_all && (place == place_ || view != nullptr);
    exposed->views.push_back(view);
  }
  const std::vector<uint8_t> have = GatherEach(uint8_t{have_all}, on_wait);
  if (std::ranges::count(have, 0) > 0) return nullptr;
  move.Into(*storage, Storage::Sharing::kOthersRead);
  // The latest Expose of a storage replaces earlier ones.
  std::erase_if(exposed_, [&](const auto& one) {
    const auto before = one.lock();
    return before == nullptr || before->storage.lock() == storage;
  });
  exposed_.push_back(exposed);
  return exposed;
}

}  // namespace lathe
