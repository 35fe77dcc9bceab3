// File systems without locks, and full ones: this test's own calls fail as theirs do.
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "lathe/core/hub/hub_cache.h"
#include "lathe/tests/hub/hub_testing.h"

namespace {

bool no_locks = false, takes_files = false;
std::atomic<int64_t> space = -1;  // bytes that all files still take; -1: any number

}  // namespace

// These stand in for the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  if (!no_locks) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = ENOLCK;
  return -1;
}

extern "C" int rename(const char* from, const char* to) noexcept {
  const bool is_blob = std::string(from).ends_with(".incomplete");
  const int result = static_cast<int>(syscall(SYS_rename, from, to));
  if (!takes_files || !is_blob) return result;
  errno = ENOENT;  // as if another process had been faster
  return -1;
}

extern "C" ssize_t write(int fd, const void* data, size_t size) {
  struct stat info;
  const bool is_limited = space >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (is_limited && size > static_cast<uint64_t>(space)) size = static_cast<size_t>(space);
  if (is_limited && size == 0) {
    errno = ENOSPC;
    return -1;
  }
  const ssize_t written = syscall(SYS_write, fd, data, size);
  if (is_limited && written > 0) space -= written;
  return written;
}

namespace lathe {
namespace {

class HubLocksTest : public HubTest {
 protected:
  ~HubLocksTest() override {
    no_locks = takes_files = false;
    space = -1;
  }
  // Returns how many of these processes, which run at the same time, get the right weights.
  int FetchInProcesses(int count) {
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        int code = 1;
        try {
          code = Weights(Fetch()) == weights_ ? 0 : 1;
        } catch (const Error& e) {
          fprintf(stderr, "%s\n", e.what());
        }
        _exit(code);
      }
      children.push_back(child);
    }
    int right = 0;
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      right += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return right;
  }
};

TEST_F(HubLocksTest, ProcessesFetchOnce) {
  cdn_.SetRate(200);  // takes half a second
  for (const char* no_links : {"0", "1"}) {
    std::filesystem::remove_all(root_ + "/hub");
    hub_.ForgetRequests();
    cdn_.ForgetRequests();
    setenv("HF_HUB_DISABLE_SYMLINKS", no_links, 1);
    EXPECT_EQ(FetchInProcesses(4), 4) << no_links;
    EXPECT_EQ(hub_.Count("GET", "/config.json"), 1) << no_links;
    EXPECT_EQ(hub_.Count("GET", "/vocab.txt"), 1) << no_links;
    EXPECT_EQ(cdn_.Count("GET", "/stored/"), 1) << no_links;
  }
}

TEST_F(HubLocksTest, WithoutLocksFilesOfOthersAreLeftAlone) {
  Fetch({.config = true});
  const std::string blob = Cache() + "/blobs/" + LfsEtag(weights_);
  const std::string of_others = blob + ".0123abcd.incomplete", older = blob + ".incomplete";
  PublishText(of_others, weights_.substr(0, 60'000));
  PublishText(older, weights_.substr(0, 50'000));
  no_locks = true;
  cdn_.ForgetRequests();
  EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(cdn_.requests().at(0).headers.count("range"), 0u);
  EXPECT_EQ(ReadFile(of_others), weights_.substr(0, 60'000));
  EXPECT_EQ(ReadFile(older), weights_.substr(0, 50'000));
}

TEST_F(HubLocksTest, ADiskThatFillsUpKeepsWhatCame) {
  Fetch({.config = true});
  space = 40'000;
  ExpectError([&] { Fetch(); }, ".incomplete: No space left on device", "choose the cache");
  space = -1;
  cdn_.ForgetRequests();
  EXPECT_EQ(Weights(Fetch()), weights_);
  const std::string range = cdn_.requests().at(0).headers.at("range");
  EXPECT_TRUE(range.starts_with("bytes=39")) << range;  // other files took some bytes
}

TEST_F(HubLocksTest, AFileThatAnotherHasTakenIsUsedAsTheBlob) {
  no_locks = takes_files = true;
  EXPECT_EQ(Weights(Fetch()), weights_);
}

TEST_F(HubLocksTest, WithoutLocksAndLinksProcessesFetchAtTheSameTime) {
  setenv("HF_HUB_DISABLE_SYMLINKS", "1", 1);
  no_locks = true;
  for (int i = 0; i < 5; ++i) {
    std::filesystem::remove_all(root_ + "/hub");
    EXPECT_EQ(FetchInProcesses(4), 4);
  }
  // One of them may move the blob before another can.
  const HubCache cache(root_ + "/hub", kModel);
  const std::string path = cache.SnapshotPath(kCommit, "vocab.txt");
  const auto link = [&](bool is_new) {
    cache.Link(kCommit, "vocab.txt", GitEtag("[PAD]\n[UNK]\n"), /*use_symlinks=*/false, is_new);
  };
  std::filesystem::remove(cache.BlobPath(GitEtag("[PAD]\n[UNK]\n")));
  for (const bool is_new : {true, false}) {
    link(is_new);
    EXPECT_EQ(ReadFile(path), "[PAD]\n[UNK]\n");
  }
  std::filesystem::remove(path);
  for (const bool is_new : {true, false}) {
    ExpectError([&] { link(is_new); }, path + ": No such file or directory");
  }
}

TEST_F(HubLocksTest, ALinkNeverTakesTheOnlyCopysPlace) {
  setenv("HF_HUB_DISABLE_SYMLINKS", "1", 1);
  Fetch();
  unsetenv("HF_HUB_DISABLE_SYMLINKS");
  const HubCache cache(root_ + "/hub", kModel);
  const std::string path = cache.SnapshotPath(kCommit, "vocab.txt");
  ASSERT_FALSE(Exists(cache.BlobPath(GitEtag("[PAD]\n[UNK]\n"))));
  const auto link = [&] {
    cache.Link(kCommit, "vocab.txt", GitEtag("[PAD]\n[UNK]\n"), /*use_symlinks=*/true,
               /*is_new=*/true);
  };
  link();
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  EXPECT_EQ(ReadFile(path), "[PAD]\n[UNK]\n");
  // A link that leads elsewhere is replaced.
  std::filesystem::remove(path);
  std::filesystem::create_symlink("elsewhere", path);
  link();
  EXPECT_EQ(std::filesystem::read_symlink(path).filename(), GitEtag("[PAD]\n[UNK]\n"));
}

TEST_F(HubLocksTest, WithoutLocksABrokenDownloadLeavesNothing) {
  no_locks = true;
  cdn_.Fail({.path = "/stored/", .times = -1, .status = 404});
  ExpectError([&] { Fetch(); }, "has no model.safetensors");
  for (const std::string& line : Tree(Cache() + "/blobs")) {
    EXPECT_EQ(line.find(".incomplete"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace lathe
