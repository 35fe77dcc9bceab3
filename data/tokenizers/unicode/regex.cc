#include "lathe/data/tokenizers/unicode/regex.h"

#include <absl/status/status.h>
#include <oniguruma.h>

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
  const int status = onig_new(&impl->regex, Bytes(pattern), Bytes(pattern) + pattern.size(),
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
