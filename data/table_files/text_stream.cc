#include "lathe/data/table_files/text_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {

class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Returns at most `size` bytes; 0 at the end only.
  virtual size_t Read(char* to, size_t size) = 0;
};

namespace {

constexpr size_t kInputBytes = size_t{1} << 17;

std::string Lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

size_t ReadFrom(int fd, const std::string& path, char* to, size_t size) {
  for (;;) {
    const ssize_t got = read(fd, to, size);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) throw FileError(path, errno);
  }
}

// The compressed bytes of a file, in blocks.
class Input {
 public:
  Input(int fd, std::string path) : fd_(fd), path_(std::move(path)), block_(kInputBytes) {}

  // Returns false at the end of the file.
  bool Fill() {
    begin_ = 0;
    end_ = ReadFrom(fd_, path_, block_.data(), block_.size());
    return end_ > 0;
  }
  const char* data() const { return block_.data() + begin_; }
  size_t size() const { return end_ - begin_; }
  void Skip(size_t size) { begin_ += size; }

  Error CutShort() const {
    return DataLoss(path_ + ": the file is cut short: its compressed data have no end",
                    "copy or download it again");
  }
  Error Damaged(const std::string& what) const {
    return DataLoss(path_ + ": the compressed data are damaged: " + what,
                    "copy or download it again");
  }
  Error OtherFormat(const char* program, const char* extension) const {
    return InvalidArgument(
        path_ + ": the file is not compressed by " + program,
        std::string("leave ") + extension + " out of its name if it is not compressed");
  }

 private:
  int fd_;
  std::string path_;
  std::vector<char> block_;
  size_t begin_ = 0, end_ = 0;
};

// Reads members of gzip (RFC 1952), one behind the other. Zeros behind a member are no data, since
// tapes and some programs fill up blocks with them.
class GzipDecompressor : public Decompressor {
 public:
  GzipDecompressor(int fd, const std::string& path) : input_(fd, path) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&state_, MAX_WBITS + kGzipOnly) != Z_OK)
      throw InvalidArgument(path + ": zlib could not be started", "free some memory");
  }
  ~GzipDecompressor() override { inflateEnd(&state_); }
  GzipDecompressor(const GzipDecompressor&) = delete;
  GzipDecompressor& operator=(const GzipDecompressor&) = delete;

  size_t Read(char* to, size_t size) override {
    size = std::min<size_t>(size, std::numeric_limits<uInt>::max());
    while (!at_end_) {
      if (input_.size() == 0 && !input_.Fill()) {
        if (within_member_ || num_members_ == 0) throw input_.CutShort();
        at_end_ = true;
        break;
      }
      if (!within_member_ && num_members_ > 0) {
        SkipZeros();
        if (input_.size() == 0) continue;
        inflateReset(&state_);
      }
      const size_t got = Inflate(to, size);
      if (got > 0) return got;
    }
    return 0;
  }

 private:
  void SkipZeros() {
    const std::string_view rest(input_.data(), input_.size());
    input_.Skip(std::min(rest.find_first_not_of('\0'), rest.size()));
  }
  // Returns how many bytes it has written.
  size_t Inflate(char* to, size_t size) {
    const size_t before = input_.size();
    if (first_.size() < kMagic.size())
      first_.append(input_.data(), std::min(before, kMagic.size() - first_.size()));
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input_.data()));
    state_.avail_in = static_cast<uInt>(before);
    state_.next_out = reinterpret_cast<Bytef*>(to);
    state_.avail_out = static_cast<uInt>(size);
    within_member_ = true;
    const int code = inflate(&state_, Z_NO_FLUSH);
    input_.Skip(before - state_.avail_in);
    if (code == Z_STREAM_END) {
      within_member_ = false;
      ++num_members_;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      if (first_ != kMagic) throw input_.OtherFormat("gzip", ".gz");
      throw input_.Damaged(state_.msg != nullptr ? state_.msg : "no memory");
    }
    return size - state_.avail_out;
  }

  static constexpr std::string_view kMagic = "\x1f\x8b";  // begins each member

  Input input_;
  std::string first_;  // the file's first bytes, as many as kMagic has
  z_stream state_ = {};
  bool within_member_ = false, at_end_ = false;
  int64_t num_members_ = 0;  // that have ended
};

// Reads frames of Zstandard (RFC 8878), one behind the other.
class ZstdDecompressor : public Decompressor {
 public:
  ZstdDecompressor(int fd, const std::string& path) : input_(fd, path), state_(ZSTD_createDCtx()) {
    if (state_ == nullptr)
      throw InvalidArgument(path + ": libzstd could not be started", "free some memory");
  }
  ~ZstdDecompressor() override { ZSTD_freeDCtx(state_); }
  ZstdDecompressor(const ZstdDecompressor&) = delete;
  ZstdDecompressor& operator=(const ZstdDecompressor&) = delete;

  size_t Read(char* to, size_t size) override {
    for (;;) {
      // A frame's last bytes may still lie in the library when all of its input has been taken.
      if (input_.size() == 0 && !has_more_output_ && !input_.Fill()) {
        if (within_frame_ || !has_begun_) throw input_.CutShort();
        return 0;
      }
      ZSTD_inBuffer in = {input_.data(), input_.size(), 0};
      ZSTD_outBuffer out = {to, size, 0};
      const size_t code = ZSTD_decompressStream(state_, &out, &in);
      if (ZSTD_isError(code) != 0) {
        if (!has_begun_ && ZSTD_getErrorCode(code) == ZSTD_error_prefix_unknown)
          throw input_.OtherFormat("zstd", ".zst");
        throw input_.Damaged(ZSTD_getErrorName(code));
      }
      input_.Skip(in.pos);
      has_begun_ = true;
      within_frame_ = code != 0;
      has_more_output_ = out.pos == size && within_frame_;
      if (out.pos > 0) return out.pos;
    }
  }

 private:
  Input input_;
  ZSTD_DCtx* state_;
  bool has_begun_ = false, within_frame_ = false, has_more_output_ = false;
};

}  // namespace

std::string WithoutCompression(const std::string& path) {
  const std::string lower = Lower(path);
  for (const std::string_view extension : {".gz", ".zst"}) {
    if (lower.ends_with(extension)) return path.substr(0, path.size() - extension.size());
  }
  return path;
}

TextStream::TextStream(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw FileError(path, errno);
  try {
    const std::string lower = Lower(path);
    if (lower.ends_with(".gz")) decompressor_ = std::make_unique<GzipDecompressor>(fd_, path);
    if (lower.ends_with(".zst")) decompressor_ = std::make_unique<ZstdDecompressor>(fd_, path);
  } catch (...) {
    close(fd_);
    throw;
  }
}

TextStream::~TextStream() { close(fd_); }

size_t TextStream::Read(char* to, size_t size) {
  return decompressor_ != nullptr ? decompressor_->Read(to, size) : ReadFrom(fd_, path_, to, size);
}

std::string TextStream::ReadAll() {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  std::string all;
  for (;;) {
    const size_t before = all.size();
    all.resize(before + kBlockBytes);
    const size_t got = Read(all.data() + before, kBlockBytes);
    all.resize(before + got);
    if (got == 0) return all;
  }
}

}  // namespace lathe
