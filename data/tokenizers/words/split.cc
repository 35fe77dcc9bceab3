#include "lathe/data/tokenizers/words/split.h"

#include <algorithm>
#include <vector>

#include "lathe/data/utf8.h"

namespace lathe {
namespace {

struct Span {
  size_t begin, end;
  bool is_match;
};

// Merges each match into the span before it, unless that is a match, too. Works on reversed spans
// as well.
std::vector<Span> MergeMatches(const std::vector<Span>& spans) {
  std::vector<Span> merged;
  bool after_match = false;
  for (const Span& span : spans) {
    if (span.is_match && !after_match && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, span.begin);
      merged.back().end = std::max(merged.back().end, span.end);
    } else {
      merged.push_back(span);
    }
    after_match = span.is_match;
  }
  return merged;
}

std::vector<Span> MergeEqualNeighbours(const std::vector<Span>& spans) {
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (!merged.empty() && merged.back().is_match == span.is_match) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

}  // namespace

void SplitText(std::string_view text, const std::function<void(const OnMatch&)>& for_each_match,
               SplitBehavior behavior, bool invert,
               const std::function<void(std::string_view)>& emit) {
  std::vector<Span> spans;
  size_t done = 0;
  for_each_match([&](size_t begin, size_t end) {
    if (done < begin) {
      spans.push_back({done, begin, invert});
    }
    spans.push_back({begin, end, !invert});
    done = end;
  });
  if (done < text.size()) {
    spans.push_back({done, text.size(), invert});
  }
  switch (behavior) {
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kRemoved:
      std::erase_if(spans, [](const Span& span) { return span.is_match; });
      break;
    case SplitBehavior::kContiguous:
      spans = MergeEqualNeighbours(spans);
      break;
    case SplitBehavior::kMergedWithPrevious:
      spans = MergeMatches(spans);
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(spans.begin(), spans.end());
      spans = MergeMatches(spans);
      std::reverse(spans.begin(), spans.end());
      break;
  }
  for (const Span& span : spans) {
    if (span.begin < span.end) {
      emit(text.substr(span.begin, span.end - span.begin));
    }
  }
}

void SplitAtCharacters(std::string_view text, bool (*is_delimiter)(char32_t c),
                       SplitBehavior behavior, const std::function<void(std::string_view)>& emit) {
  const auto for_each_match = [&](const OnMatch& on_match) {
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      if (is_delimiter(DecodeUtf8(text, &pos))) {
        on_match(begin, pos);
      }
    }
  };
  SplitText(text, for_each_match, behavior, false, emit);
}

}  // namespace lathe
