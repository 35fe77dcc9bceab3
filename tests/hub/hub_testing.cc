#include "lathe/tests/hub/hub_testing.h"

#include <algorithm>

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

}  // namespace lathe
