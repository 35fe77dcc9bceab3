// FlagTable::Help.
#include <absl/strings/str_join.h>

#include <algorithm>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/help_text.h"

namespace lathe {
namespace {

// Returns what Help prints for a flag.
std::string HelpOf(const FlagTable::Flag& flag, size_t width, size_t indent) {
  std::string text =
      flag.help + (flag.choices.empty() ? "" : "; values: " + absl::StrJoin(flag.choices, ", "));
  if (flag.default_value.empty()) return WrapText(text, width, indent, indent);
  // The default stays on one line, so its spaces are none to WrapText.
  constexpr char kNoBreak = '\x01';
  std::string shown = "(default: " + flag.default_value + ")";
  std::replace(shown.begin(), shown.end(), ' ', kNoBreak);
  text = WrapText(text + ' ' + shown, width, indent, indent);
  std::replace(text.begin(), text.end(), kNoBreak, ' ');
  return text;
}

}  // namespace

std::string FlagTable::Help(std::optional<size_t> given_width) const {
  const size_t width = given_width.value_or(HelpWidth());
  const size_t indent = width < 60 ? 8 : 35;  // of the texts beside or below the names
  std::string out = WrapProse(usage_, width);
  for (size_t group = 0; group < groups_.size(); ++group) {
    out += '\n' + WrapText(groups_[group] + ":", width) + '\n';
    for (const Flag& flag : flags_) {
      if (flag.group != static_cast<int>(group) || !flag.is_listed) continue;
      std::string left =
          "  --" + flag.name + (flag.value_name.empty() ? "" : " " + flag.value_name);
      left.size() + 1 < indent ? left.append(indent - left.size(), ' ')
                               : left.append('\n' + std::string(indent, ' '));
      out += left + HelpOf(flag, width, indent) + '\n';
    }
  }
  return out;
}

}  // namespace lathe
