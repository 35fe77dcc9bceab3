// The part of LocalRanks that lets ranks map each other's memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "lathe/core/base/round_up.h"
#include "lathe/core/pages.h"
#include "lathe/distributed/groups/local_ranks.h"

namespace lathe {
namespace {

// Bytes of a storage that are to move into a memory file: their number, and the file. Ranks tell
// each other theirs.
struct Offer {
  int64_t bytes = 0;
  int file = -1;
};

MappedPages Owned(char* pages, int64_t bytes) {
  return MappedPages(pages, {static_cast<size_t>(bytes)});
}

// Maps a memory file that another process has open. Returns null if that is not possible.
MappedPages MapFileOf(pid_t pid, int file, int64_t bytes, bool writes = true) {
  if (file < 0) return nullptr;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
  const int opened = open(path.c_str(), (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (opened < 0) return nullptr;
  MappedPages pages = Owned(MapPages(bytes, opened, writes), bytes);
  close(opened);
  return pages;
}

bool CanRead(const LocalRanks::Hello& other) {
  uint64_t value = 0;
  const iovec theirs = {const_cast<uint64_t*>(other.at), sizeof value};
  const iovec mine = {&value, sizeof value};
  return process_vm_readv(other.pid, &mine, 1, &theirs, 1, 0) > 0 && value == other.mark;
}

}  // namespace

void Unmap::operator()(char* pages) const { munmap(pages, bytes); }

SharedFile::SharedFile(const char* name, int64_t bytes, const Storage* from) {
  if (bytes == 0) return;
  const MemoryFile made = MakeMemoryFile(name, bytes);
  file = made.file;
  pages = Owned(made.pages, bytes);
  if (pages == nullptr || from == nullptr) return;
  std::memcpy(pages.get(), from->data(), static_cast<size_t>(std::min(bytes, from->bytes())));
}

SharedFile::~SharedFile() {
  if (file >= 0) close(file);
}

LocalRanks::Newcomer::Newcomer(int num_ranks)
    : slots_("lathe ranks", num_ranks * static_cast<int64_t>(sizeof(Slot))),
      // A value by which others recognise this process: in another container, another process may
      // have the same process id.
      mark_((static_cast<uint64_t>(getpid()) << 32) ^
            reinterpret_cast<uintptr_t>(&mark_) * 0x9E3779B97F4A7C15u),
      hello_{getpid(), slots_.file, &mark_, mark_} {
  // Where the kernel lets a process read only its descendants' memory, this lets all processes of
  // the same user read this one's.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

std::unique_ptr<LocalRanks> LocalRanks::Newcomer::Meet(const std::vector<Hello>& hellos,
                                                       int place) {
  if (!std::ranges::all_of(hellos, CanRead)) return nullptr;
  const auto bytes = static_cast<int64_t>(hellos.size() * sizeof(Slot));
  MappedPages pages =
      place == 0 ? std::move(slots_.pages) : MapFileOf(hellos[0].pid, hellos[0].file, bytes);
  if (pages == nullptr) return nullptr;
  return std::unique_ptr<LocalRanks>(new LocalRanks(place, hellos.size(), std::move(pages)));
}

LocalRanks::LocalRanks(int place, size_t size, MappedPages pages)
    : place_(place),
      pages_(std::move(pages)),
      slots_(reinterpret_cast<Slot*>(pages_.get()), size) {  // all zeros at first
  SlotOf(place).pid = getpid();
}

void LocalRanks::PublishLocation(Part& part, size_t bytes) const {
  part.exposed = 0;
  for (const auto& one : exposed_) {
    const std::shared_ptr<const ExposedMemory> exposed = one.lock();
    const std::shared_ptr<Storage> storage = exposed == nullptr ? nullptr : exposed->storage.lock();
    if (storage == nullptr || storage->sharing() != Storage::Sharing::kOthersRead) continue;
    // Addresses are subtracted as numbers, since the data may lie anywhere. An address before the
    // storage's gives an offset that is too large.
    const uintptr_t begin =
        reinterpret_cast<uintptr_t>(data_) - reinterpret_cast<uintptr_t>(storage->data());
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
      return exposed->views[static_cast<size_t>(place)].get() + part.begin;
  }
  return nullptr;
}

template <typename T>
std::vector<T> LocalRanks::GatherEach(const T& mine) {
  Publish({}, std::as_bytes(std::span(&mine, 1)));
  std::vector<T> all(slots_.size());
  for (int place = 0; place < size(); ++place) {
    T& theirs = all[static_cast<size_t>(place)];
    Read(place, 0, std::as_writable_bytes(std::span(&theirs, 1)));
  }
  return all;
}

void LocalRanks::Share(Storage& storage) {
  const int64_t bytes = storage.shareable_bytes();
  SharedFile own("lathe parameters", place_ == 0 ? bytes : 0, &storage);
  const Offer first = GatherEach(Offer{bytes, own.file})[0];
  if (place_ != 0 && first.bytes == bytes) own.pages = MapFileOf(SlotOf(0).pid, first.file, bytes);
  const std::vector<uint8_t> have = GatherEach(uint8_t{own.pages != nullptr});
  if (std::ranges::count(have, 0) > 0) return;
  storage.MapShared(own.pages.release(), bytes, Storage::Sharing::kOthersReadAndWrite);
}

std::shared_ptr<const void> LocalRanks::Expose(const std::shared_ptr<Storage>& storage,
                                               int64_t bytes) {
  const int64_t size = std::min(RoundUp(bytes, kPageBytes), storage->shareable_bytes());
  SharedFile own("lathe gradients", size, storage.get());
  const std::vector<Offer> offers = GatherEach(Offer{size, own.file});
  const auto exposed = std::make_shared<ExposedMemory>();
  exposed->id = ++times_exposed_;
  exposed->storage = storage;
  exposed->bytes = static_cast<size_t>(size);
  bool have_all = own.pages != nullptr;
  for (int place = 0; place < this->size(); ++place) {
    MappedPages& view = exposed->views.emplace_back();
    if (place == place_ || !have_all) continue;
    const Offer& theirs = offers[static_cast<size_t>(place)];
    if (theirs.bytes == size)
      view = MapFileOf(SlotOf(place).pid, theirs.file, size, /*writes=*/false);
    have_all = view != nullptr;
  }
  const std::vector<uint8_t> have = GatherEach(uint8_t{have_all});
  if (std::ranges::count(have, 0) > 0) return nullptr;
  storage->MapShared(own.pages.release(), size, Storage::Sharing::kOthersRead);
  // The latest Expose of a storage replaces earlier ones.
  std::erase_if(exposed_, [&](const auto& one) {
    const auto before = one.lock();
    return before == nullptr || before->storage.lock() == storage;
  });
  exposed_.push_back(exposed);
  return exposed;
}

}  // namespace lathe
