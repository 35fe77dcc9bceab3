#include "lathe/data/tokenizers/unicode/regex.h"

#include <absl/status/status.h>
#include <oniguruma.h>

#include <algorithm>
#include <optional>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/unicode/newer_characters.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

const OnigUChar* Bytes(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string OnigMessage(int code, OnigErrorInfo* info) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int size = info != nullptr ? onig_error_code_to_str(buffer, code, info)
                                   : onig_error_code_to_str(buffer, code);
  return std::string(reinterpret_cast<const char*>(buffer), static_cast<size_t>(size));
}

// Oniguruma must be initialized once, before the first pattern is compiled.
void InitializeOnce() {
  static const int status = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    // The library limits the steps back of one match, but not of a search, which tries many.
    constexpr unsigned long kMostSteps = 50'000'000;  // about a second
    const int started = onig_initialize(encodings, 1);
    return started == ONIG_NORMAL ? onig_set_retry_limit_in_search(kMostSteps) : started;
  }();
  if (status != ONIG_NORMAL) {
    throw Error(absl::StatusCode::kInternal, "[regex] Oniguruma can't start");
  }
}

// Returns true if an option group such as "(?iP)" or "(?P:" leaves ASCII alone to POSIX brackets.
bool HasAsciiBrackets(std::string_view pattern) {
  for (size_t pos = pattern.find("(?"); pos != std::string_view::npos;
       pos = pattern.find("(?", pos + 1)) {
    const size_t end = pattern.find_first_not_of("abcdefghijklmnopqrstuvwxyzDIPSW", pos + 2);
    if (end != std::string_view::npos && (pattern[end] == ')' || pattern[end] == ':') &&
        pattern.substr(pos, end - pos).find('P') != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

// Returns the size of the POSIX bracket such as "[:alpha:]" with which `text` begins, or 0.
size_t PosixBracketSize(std::string_view text) {
  if (!text.starts_with("[:")) return 0;
  const size_t end = text.find_first_not_of("^abcdefghijklmnopqrstuvwxyz", 2);
  return text.substr(std::min(end, text.size())).starts_with(":]") ? end + 2 : 0;
}

// Returns the pattern with all symbols in the POSIX bracket of punctuation: `tokenizers` compiles
// [[:punct:]] to punctuation and symbols, Oniguruma 6.9.8 to punctuation alone.
std::string WithSymbolsInPunct(std::string_view pattern) {
  const std::string punct = HasAsciiBrackets(pattern) ? R"(!-/:-@\[-\x60{-~)" : R"(\p{P}\p{S})";
  std::string out;
  out.reserve(pattern.size());
  int depth = 0;  // of the character classes, each in another
  for (size_t pos = 0; pos < pattern.size();) {
    const std::string_view rest = pattern.substr(pos);
    const std::string_view bracket = rest.substr(0, depth > 0 ? PosixBracketSize(rest) : 0);
    size_t taken = std::max<size_t>(1, bracket.size());
    if (rest[0] == '\\') {
      taken = std::min<size_t>(2, rest.size());
    } else if (bracket.empty() && rest[0] == '[') {
      ++depth;
      // A class's first ']' is a character of it.
      taken += rest.substr(taken).starts_with('^');
      taken += rest.substr(taken).starts_with(']');
    } else if (rest[0] == ']' && depth > 0) {
      --depth;
    }
    if (bracket == "[:punct:]") {
      out += punct;
    } else if (bracket == "[:^punct:]") {
      out += "[^" + punct + "]";
    } else {
      out += rest.substr(0, taken);
    }
    pos += taken;
  }
  return out;
}

struct Region {
  OnigRegion* region = onig_region_new();
  ~Region() { onig_region_free(region, 1); }
};

}  // namespace

struct Regex::Impl {
  regex_t* regex = nullptr;
  std::string pattern;
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { onig_free(regex); }
};

Regex::Regex(const std::string& pattern) {
  InitializeOnce();
  auto impl = std::make_shared<Impl>();
  impl->pattern = pattern;
  OnigErrorInfo info;
  const std::string meant = WithSymbolsInPunct(pattern);
  const int status = onig_new(&impl->regex, Bytes(meant), Bytes(meant) + meant.size(),
                              ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (status != ONIG_NORMAL) {
    impl->regex = nullptr;
    throw InvalidArgument("'" + pattern +
                          "' is not a regular expression: " + OnigMessage(status, &info));
  }
  impl_ = std::move(impl);
}

void Regex::ForEachMatch(std::string_view text,
                         const std::function<void(size_t, size_t)>& on_match) const {
  if (text.empty()) {
    return;  // `tokenizers` finds nothing in an empty text
  }
  const std::optional<std::string> older = WithOlderCharacters(text);
  text = older ? *older : text;
  const OnigUChar* const begin = Bytes(text);
  const OnigUChar* const end = begin + text.size();
  Region matched;
  size_t last_match_end = std::string_view::npos;
  for (size_t from = 0; from <= text.size();) {
    const int status =
        onig_search(impl_->regex, begin, end, begin + from, end, matched.region, ONIG_OPTION_NONE);
    if (status == ONIG_MISMATCH) {
      return;
    }
    if (status < 0) {
      throw InvalidArgument("the regular expression '" + impl_->pattern +
                            "' can't be searched for in a text: " + OnigMessage(status, nullptr));
    }
    const auto match_begin = static_cast<size_t>(matched.region->beg[0]);
    const auto match_end = static_cast<size_t>(matched.region->end[0]);
    if (match_begin == match_end && match_end == last_match_end) {
      from += from < text.size() ? Utf8SequenceLength(text[from]) : 1;
      continue;
    }
    from = last_match_end = match_end;
    on_match(match_begin, match_end);
  }
}

}  // namespace lathe
