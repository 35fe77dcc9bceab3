#include "lathe/core/keras_files/confined_hdf5.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/libraries.h"
#include "lathe/core/keras_files/confined_child.h"

namespace lathe {
namespace {

constexpr int64_t kMemory = int64_t{1} << 30;  // of the child, beyond what this process has
constexpr int64_t kMostRatio = 16;             // of compressed numbers
constexpr int64_t kBytesPerSecond = 10'000'000;
constexpr int64_t kSeconds = 20;  // for a small file

// The first byte of an answer.
constexpr char kArrays = '+', kDamaged = '-', kRefused = '?';
constexpr char kHint[] = "\nhint: ";  // between a refusal and its hint

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

// Returns where HDF5's part of the file begins. A user block may lie before it, which is for other
// programs and has 512 bytes, or 1024, and so on. Throws DataLoss if the file is none of HDF5.
size_t EndOfUserBlock(std::string_view bytes) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  for (size_t at = 0; at < bytes.size(); at = at == 0 ? 512 : 2 * at) {
    if (bytes.substr(at).starts_with(kSignature)) return at;
  }
  throw DataLoss("is no HDF5 file");
}

}  // namespace

MemoryFile::MemoryFile() : fd_(memfd_create("arrays", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (fd_ < 0) throw FileError("memory file", errno);
}

MemoryFile::~MemoryFile() { close(fd_); }

std::shared_ptr<const MappedFile> MemoryFile::Map() const {
  if (fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    throw FileError("memory file", errno);
  }
  return std::make_shared<const MappedFile>(fd_, "memory file");
}

std::vector<Hdf5Array> FindConfined(
    const MappedFile& memory, const MemoryFile& copies, const std::string& file,
    const std::function<std::vector<Hdf5Array>(std::string_view bytes, int copies)>& find) {
  const size_t begin = EndOfUserBlock(memory.bytes());
  // HDF5 takes the place of the signature for the beginning, whatever the file itself says.
  const std::string_view bytes = memory.bytes().substr(begin);
  Hdf5();  // opened here, since the child can't
  const auto size = static_cast<int64_t>(memory.size());
  const auto answer = [&](int pipe) {
    std::string text;
    try {
      text = kArrays + Serialize(find(bytes, copies.fd()));
    } catch (const Error& e) {
      const bool damaged = e.code() == absl::StatusCode::kDataLoss;
      text = (damaged ? kDamaged : kRefused) + e.message();
      if (!damaged && !e.hint().empty()) text += kHint + e.hint();
    } catch (const std::exception&) {
      text = kDamaged + std::string("it takes too much memory");
    }
    WriteAll(pipe, text);
  };
  const ConfinedResult result = RunConfined(file, copies.fd(),
                                            {.memory = kMemory,
                                             .written = kMostRatio * size + (int64_t{8} << 20),
                                             .seconds = kSeconds + size / kBytesPerSecond},
                                            answer);
  if (!result.failure.empty()) throw DataLoss("the process that read it " + result.failure);
  std::vector<Hdf5Array> arrays = ArraysInAnswer(result.message);
  for (Hdf5Array& array : arrays) {
    if (!array.is_copied) array.offset += begin;
    for (Hdf5Chunk& chunk : array.chunks) chunk.offset += begin;
  }
  return arrays;
}

std::vector<Hdf5Array> ArraysInAnswer(const std::string& message) {
  if (message.empty()) throw DataLoss("its reader gave no answer");
  const std::string text = message.substr(1);
  if (message[0] != kArrays && (text.empty() || text.starts_with(kHint)))
    throw DataLoss("its reader gave no reason");
  if (message[0] == kRefused) {
    const size_t hint = text.find(kHint);
    if (hint == std::string::npos) throw InvalidArgument(text);
    throw InvalidArgument(text.substr(0, hint), text.substr(hint + sizeof kHint - 1));
  }
  if (message[0] != kArrays) throw DataLoss(text);
  return Deserialize(text);
}

}  // namespace lathe
