#include "lathe/apps/lathe/text_source.h"

#include <poll.h>
#include <unistd.h>

#include <iostream>

#include "lathe/core/base/error.h"
#include "lathe/data/utf8.h"

namespace lathe {

std::optional<std::string> TextSource::Next() {
  std::string text;
  if (texts_.empty()) {
    if (!std::getline(std::cin, text)) return std::nullopt;
    if (text.ends_with('\r')) text.pop_back();
  } else {
    if (count_ == static_cast<int64_t>(texts_.size())) return std::nullopt;
    text = texts_[static_cast<size_t>(count_)];
  }
  ++count_;
  if (ValidateUtf8(text) != std::string_view::npos) {
    if (invalid_utf8_ == "error") {
      throw InvalidArgument(Where() + ": not valid UTF-8", "pass --invalid_utf8 replace");
    }
    text = ReplaceInvalidUtf8(text);
  }
  return text;
}

std::string TextSource::Where() const {
  return (texts_.empty() ? "standard input:" : "text ") + std::to_string(count_);
}

bool TextSource::WouldWait() const {
  if (!texts_.empty() || std::cin.rdbuf()->in_avail() > 0) return false;
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return poll(&input, 1, 0) == 0;
}

TextPair SplitPair(std::string_view line, bool pairs, const std::string& where) {
  if (!pairs) return {.first = line};
  const size_t tab = line.find('\t');
  if (tab == std::string_view::npos) {
    throw InvalidArgument(where + ": no tab between two texts",
                          "separate them by a tab, or leave --pairs out");
  }
  return {.first = line.substr(0, tab), .second = line.substr(tab + 1)};
}

Encoding EncodeAt(const std::string& where, const Tokenizer& tokenizer, const TextPair& text,
                  int64_t max_length) {
  try {
    return tokenizer.Encode(text.first, text.second, max_length);
  } catch (const Error& error) {
    throw Error(error.code(), where + ": " + WithoutTag(error.message()), error.hint());
  }
}

}  // namespace lathe
