#include "lathe/core/hub/transfer_progress.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <regex>
#include <string>
#include <thread>

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

// Returns what `body` prints on standard error, which is a terminal meanwhile.
std::string OnTerminal(const std::function<void()>& body) {
  int terminal = -1, program = -1;
  if (openpty(&terminal, &program, nullptr, nullptr, nullptr) != 0) return "no terminal";
  const int before = dup(STDERR_FILENO);
  dup2(program, STDERR_FILENO);
  close(program);
  body();
  dup2(before, STDERR_FILENO);
  close(before);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(terminal, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  close(terminal);
  return text;
}

// 1,000 bytes were there before, which say nothing about the rate. Then 1,000 come in `waited`
// seconds. Returns the bar.
std::string BarOf(int64_t total, double* waited) {
  return OnTerminal([&] {
    const Clock::time_point start = Clock::now();
    TransferProgress progress("file", 1000, total, /*enabled=*/true);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    progress.Update(2000);
    *waited = std::chrono::duration<double>(Clock::now() - start).count();
  });
}

TEST(TransferProgressTest, TheBarTellsTheTimeThatIsLeft) {
  double waited = 0;
  std::string bar = BarOf(8000, &waited);
  std::smatch found;
  const std::regex minutes(
      R"(file: \[====== {18}\] 2\.00 kB of 8\.00 kB, .*B/s, (\d+):(\d\d) left)");
  ASSERT_TRUE(std::regex_search(bar, found, minutes)) << bar;
  // Six times as many bytes are left as have come.
  const int seconds = std::stoi(found[1]) * 60 + std::stoi(found[2]);
  EXPECT_GE(seconds, 3) << bar;
  EXPECT_LE(seconds, 6 * waited) << bar;

  bar = BarOf(100'000'000, &waited);
  ASSERT_TRUE(std::regex_search(bar, found, std::regex(R"(, (\d+):(\d\d):(\d\d) left)"))) << bar;
  EXPECT_GE(std::stoi(found[1]), 13) << bar;  // 49,999 s or more
}

TEST(TransferProgressTest, NoTimeIsLeftWithoutARateOrAtTheEnd) {
  const auto bar = [](int64_t done) {
    return OnTerminal([done] {
      TransferProgress progress("file", 1000, 9000, /*enabled=*/true);
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      progress.Update(done);
    });
  };
  EXPECT_NE(bar(1000).find("1.00 kB of 9.00 kB, 0 B/s"), std::string::npos) << bar(1000);
  EXPECT_EQ(bar(1000).find("left"), std::string::npos) << bar(1000);
  EXPECT_NE(bar(9000).find("9.00 kB, "), std::string::npos) << bar(9000);
  EXPECT_EQ(bar(9000).find("left"), std::string::npos) << bar(9000);
}

}  // namespace
}  // namespace lathe
