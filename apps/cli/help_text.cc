#include "lathe/apps/cli/help_text.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace lathe {
namespace {

constexpr size_t kNarrowestHelp = 40, kUsualWidth = 80;

}  // namespace

size_t HelpWidth(int descriptor) {
  size_t width = 0;
  winsize found{};
  if (ioctl(descriptor, TIOCGWINSZ, &found) == 0) width = found.ws_col;
  if (const char* columns = std::getenv("COLUMNS"); width == 0 && columns != nullptr)
    width = std::strtoul(columns, nullptr, 10);
  return std::clamp(width == 0 ? kUsualWidth : width, kNarrowestHelp, kWidestHelp);
}

std::string WrapText(const std::string& text, size_t width, size_t indent, size_t column) {
  std::string out;
  std::istringstream words(text);
  bool begins = true;  // a line
  for (std::string word; words >> word;) {
    if (!begins && column + 1 + word.size() > width) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!begins) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    begins = false;
  }
  return out;
}

std::string WrapProse(const std::string& text, size_t width) {
  std::string out, prose;
  const auto end_prose = [&] {
    if (!prose.empty()) out += WrapText(prose, width) + '\n';
    prose.clear();
  };
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != ' ') {
      prose += line + '\n';
      continue;
    }
    end_prose();
    out += line + '\n';
  }
  end_prose();
  return out;
}

}  // namespace lathe
