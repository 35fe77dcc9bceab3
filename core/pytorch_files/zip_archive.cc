#include "lathe/core/pytorch_files/zip_archive.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "lathe/core/weight_files/stored_array.h"

namespace lathe {
namespace {

// Sizes and signatures of the records, and the offsets of their fields (PKWARE's APPNOTE 6.3).
constexpr uint32_t kLocalSignature = 0x04034b50, kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22;
constexpr uint64_t kEnd64Size = 56, kLocator64Size = 20;
constexpr uint64_t kMaxComment = 65535;
constexpr uint16_t kStored = 0, kEncrypted = 1, kExtra64 = 1;
constexpr uint32_t kSee64 = 0xffffffff;  // the value is in the zip64 form

// One zip file that is being read.
class Archive {
 public:
  Archive(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::map<std::string, ZipMember> Members() {
    const Directory directory = FindDirectory();
    uint64_t at = directory.begin;
    std::map<std::string, ZipMember> members;
    std::vector<Range> ranges;
    for (uint64_t i = 0; i < directory.count; ++i) {
      const Header header = ReadHeader(at, directory.end);
      at = header.end;
      const ZipMember member = Locate(header, directory.begin);
      if (!members.emplace(header.name, member).second) {
        throw Broken("holds \"" + header.name + "\" twice");
      }
      const auto begin = static_cast<uint64_t>(member.bytes.data() - bytes_.data());
      ranges.push_back({header.local, begin + member.bytes.size(), header.name});
    }
    if (at != directory.end) throw Broken("its zip directory has bytes that belong to no member");
    CheckOverlap(std::move(ranges));
    return members;
  }

 private:
  struct Directory {
    uint64_t begin, end, count;
  };
  struct Header {
    std::string name;
    uint32_t crc32;
    uint64_t size, local, end;  // `local`: where the member's own header lies
  };
  struct Range {
    uint64_t begin, end;
    std::string name;
  };

  Error Broken(const std::string& what) const { return BrokenWeights(file_, what); }

  // Returns a field. The caller has checked that the record lies in the file.
  template <typename T>
  T Get(uint64_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  bool Holds(uint64_t at, uint64_t size) const {
    return at <= bytes_.size() && size <= bytes_.size() - at;
  }
  bool Has(uint64_t at, uint64_t size, uint32_t signature) const {
    return Holds(at, size) && Get<uint32_t>(at) == signature;
  }

  Directory FindDirectory() const {
    if (bytes_.size() < kEndSize) throw Broken("is too short for a zip file");
    const uint64_t last = bytes_.size() - kEndSize;
    const uint64_t first = last > kMaxComment ? last - kMaxComment : 0;
    for (uint64_t at = last + 1; at-- > first;) {
      if (Get<uint32_t>(at) == kEndSignature && Get<uint16_t>(at + 20) == last - at) {
        return CheckDirectory(ReadEnd(at), at);
      }
    }
    throw Broken("the zip file's end is missing");
  }

  // Reads the record that ends the file.
  Directory ReadEnd(uint64_t at) const {
    const uint64_t size = Get<uint32_t>(at + 12), begin = Get<uint32_t>(at + 16);
    const uint64_t count = Get<uint16_t>(at + 10);
    const bool has_64 =
        at >= kLocator64Size && Has(at - kLocator64Size, kLocator64Size, kLocator64Signature);
    if (!has_64) {
      if (Get<uint16_t>(at + 8) != count) throw Broken("is one part of several zip files");
      return {begin, begin + size, count};
    }
    const auto end_64 = Get<uint64_t>(at - kLocator64Size + 8);
    if (!Has(end_64, kEnd64Size, kEnd64Signature)) throw Broken("the zip file's end is damaged");
    const auto size_64 = Get<uint64_t>(end_64 + 40), begin_64 = Get<uint64_t>(end_64 + 48);
    if (!Holds(begin_64, size_64)) throw Broken("the zip file's directory is not in the file");
    return {begin_64, begin_64 + size_64, Get<uint64_t>(end_64 + 32)};
  }

  Directory CheckDirectory(const Directory& directory, uint64_t end) const {
    if (directory.begin > directory.end || directory.end > end) {
      throw Broken("the zip file's directory is not in the file");
    }
    if (directory.count > (directory.end - directory.begin) / kCentralSize) {
      throw Broken("the zip file's directory is shorter than its number of members needs");
    }
    return directory;
  }

  // Reads a member's header in the directory.
  Header ReadHeader(uint64_t at, uint64_t directory_end) const {
    if (!Has(at, kCentralSize, kCentralSignature)) throw Broken("the zip directory is damaged");
    const uint64_t name_size = Get<uint16_t>(at + 28), extra_size = Get<uint16_t>(at + 30);
    const uint64_t end = at + kCentralSize + name_size + extra_size + Get<uint16_t>(at + 32);
    if (end > directory_end) throw Broken("the zip directory is cut off");
    Header header = {.name = std::string(bytes_.substr(at + kCentralSize, name_size)),
                     .crc32 = Get<uint32_t>(at + 16),
                     .size = Get<uint32_t>(at + 24),
                     .local = Get<uint32_t>(at + 42),
                     .end = end};
    uint64_t packed = Get<uint32_t>(at + 20);
    Read64(at + kCentralSize + name_size, extra_size, {&header.size, &packed, &header.local});
    CheckStored(header.name, Get<uint16_t>(at + 8), Get<uint16_t>(at + 10));
    if (packed != header.size) throw Broken("\"" + header.name + "\" has two sizes");
    return header;
  }

  // Replaces the values that didn't fit by those of the zip64 field, which has them in this order.
  void Read64(uint64_t at, uint64_t size, const std::vector<uint64_t*>& values) const {
    const uint64_t end = at + size;
    while (end - at >= 4) {
      const uint16_t id = Get<uint16_t>(at), field_size = Get<uint16_t>(at + 2);
      at += 4;
      if (field_size > end - at) return;
      const uint64_t field_end = at + field_size;
      if (id == kExtra64) {
        for (uint64_t* const value : values) {
          if (*value != kSee64) continue;
          if (field_end - at < 8) throw Broken("a size in the zip directory is missing");
          *value = Get<uint64_t>(at);
          at += 8;
        }
        return;
      }
      at = field_end;
    }
  }

  void CheckStored(const std::string& name, uint16_t flags, uint16_t method) const {
    const char* const what = flags & kEncrypted  ? "encrypted"
                             : method != kStored ? "compressed"
                                                 : nullptr;
    if (what == nullptr) return;
    throw InvalidArgument(file_ + ": its member \"" + Printable(name) + "\" is " + what,
                          "PyTorch stores members as they are; save the model with torch.save");
  }

  // Finds the member's bytes, which follow its own header.
  ZipMember Locate(const Header& header, uint64_t directory_begin) const {
    const uint64_t at = header.local;
    if (!Has(at, kLocalSize, kLocalSignature)) {
      throw Broken("\"" + header.name + "\" has no header of its own");
    }
    CheckStored(header.name, Get<uint16_t>(at + 6), Get<uint16_t>(at + 8));
    const uint64_t name_size = Get<uint16_t>(at + 26);
    const uint64_t begin = at + kLocalSize + name_size + Get<uint16_t>(at + 28);
    if (begin > directory_begin || header.size > directory_begin - begin) {
      throw Broken("\"" + header.name + "\" is not in the file");
    }
    if (bytes_.substr(at + kLocalSize, name_size) != header.name) {
      throw Broken("\"" + header.name + "\" has another name in its own header");
    }
    return {bytes_.substr(begin, header.size), header.crc32};
  }

  void CheckOverlap(std::vector<Range> ranges) const {
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].begin < ranges[i - 1].end) {
        throw Broken("its members \"" + ranges[i - 1].name + "\" and \"" + ranges[i].name +
                     "\" overlap");
      }
    }
  }

  std::string_view bytes_;
  const std::string& file_;
};

}  // namespace

std::map<std::string, ZipMember> ReadZipArchive(std::string_view bytes, const std::string& file) {
  return Archive(bytes, file).Members();
}

bool IsZipArchive(std::string_view bytes) {
  return bytes.size() >= 4 && std::memcmp(bytes.data(), &kLocalSignature, 4) == 0;
}

}  // namespace lathe
