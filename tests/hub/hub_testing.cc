#include "lathe/tests/hub/hub_testing.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>

namespace lathe {

std::vector<std::string> HubTest::Tree(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string line = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink()) {
      line += " -> " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_directory()) {
      continue;
    }
    lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

void HubTest::ExpectError(const std::function<void()>& body, const std::string& part,
                          const std::string& hint) {
  try {
    body();
    ADD_FAILURE() << "expected an error with: " << part;
  } catch (const Error& e) {
    EXPECT_NE(e.message().find(part), std::string::npos) << e.what();
    EXPECT_NE(e.hint().find(hint), std::string::npos) << e.what();
    EXPECT_EQ(e.message().find('\n'), std::string::npos) << e.what();
  }
}

int HubTest::RunWithoutRights(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    if (syscall(SYS_capset, &header, none) != 0) _exit(99);
    int code = 98;
    try {
      code = body();
    } catch (const Error& e) {
      fprintf(stderr, "%s\n", e.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void HubTest::SetFolderRights(const std::string& root, std::filesystem::perms rights) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.is_directory()) std::filesystem::permissions(entry, rights);
  }
}

}  // namespace lathe
