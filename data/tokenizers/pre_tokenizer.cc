#include "lathe/data/tokenizers/pre_tokenizer.h"

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/unicode/regex.h"
#include "lathe/data/tokenizers/unicode/unicode.h"
#include "lathe/data/tokenizers/words/byte_level.h"
#include "lathe/data/tokenizers/words/split.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Splits at white space and makes each punctuation character a word of its own.
void BertPreTokenize(std::string_view text, const EmitWord& emit) {
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const char32_t c = DecodeUtf8(text, &pos);
    const bool space = IsWhitespace(c);
    if (!space && !IsPunctuation(c)) {
      continue;
    }
    if (at > begin) {
      emit(text.substr(begin, at - begin));
    }
    if (!space) {
      emit(text.substr(at, pos - at));
    }
    begin = pos;
  }
  if (begin < text.size()) {
    emit(text.substr(begin));
  }
}

void WhitespaceSplit(std::string_view text, const EmitWord& emit) {
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    if (IsWhitespace(DecodeUtf8(text, &pos))) {
      if (at > begin) {
        emit(text.substr(begin, at - begin));
      }
      begin = pos;
    }
  }
  if (begin < text.size()) {
    emit(text.substr(begin));
  }
}

enum class Prepend { kAlways, kFirst, kNever };

PreTokenizer MakeMetaspace(std::string replacement, Prepend scheme, bool split) {
  Check(!replacement.empty() && Utf8SequenceLength(replacement[0]) == replacement.size(),
        "pre_tokenizer", "Metaspace has the replacement '", replacement,
        "', which is not one character");
  return [=](std::string_view text, bool at_start, const EmitWord& emit) {
    if (text.empty()) {
      return;
    }
    std::string marked;
    const bool prepend = scheme == Prepend::kAlways || (scheme == Prepend::kFirst && at_start);
    if (prepend && !text.starts_with(' ') && !text.starts_with(replacement)) {
      marked = replacement;
    }
    for (const char c : text) {
      if (c == ' ') {
        marked += replacement;
      } else {
        marked += c;
      }
    }
    const std::string_view all = marked;
    size_t begin = 0;
    while (split && begin < all.size()) {
      const size_t next = all.find(replacement, begin + 1);
      if (next == std::string_view::npos) {
        break;
      }
      emit(all.substr(begin, next - begin));
      begin = next;
    }
    if (begin < all.size()) {
      emit(all.substr(begin));
    }
  };
}

PreTokenizer MetaspaceFromJson(const Json& json) {
  // The values of prepend_scheme: whether a text that begins with no space gets a mark.
  struct Scheme {
    const char* name;
    Prepend prepend;
  };
  constexpr std::array kSchemes = {Scheme{"always", Prepend::kAlways},
                                   Scheme{"first", Prepend::kFirst},
                                   Scheme{"never", Prepend::kNever}};
  // Files from before version 0.19 of `tokenizers` have add_prefix_space instead of prepend_scheme.
  const std::string name =
      json.value("prepend_scheme", json.value("add_prefix_space", true) ? "always" : "never");
  for (const Scheme& scheme : kSchemes) {
    if (name == scheme.name) {
      return MakeMetaspace(json.value("replacement", "▁"), scheme.prepend,
                           json.value("split", true));
    }
  }
  throw PartError("pre_tokenizer",
                  "Metaspace has the prepend_scheme '" + name + "', which is not supported",
                  "Lathe supports " + JoinNames(kSchemes, [](const Scheme& scheme) {
                    return "'" + std::string(scheme.name) + "'";
                  }));
}

// Writes the bytes of each word in the byte alphabet.
PreTokenizer ByteLevelFromJson(const Json& json) {
  const bool add_prefix_space = json.value("add_prefix_space", true);
  const bool use_regex = json.value("use_regex", true);
  return [=](std::string_view text, bool, const EmitWord& emit) {
    std::string with_space, word;
    if (add_prefix_space && !text.empty() && !text.starts_with(' ')) {
      with_space.reserve(text.size() + 1);
      text = with_space.append(1, ' ').append(text);
    }
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = use_regex ? Gpt2WordEnd(text, pos) : text.size();
      word.clear();
      AppendByteAlphabet(text.substr(pos, end - pos), &word);
      emit(word);
      pos = end;
    }
  };
}

// Splits as the pattern `\w+|[^\w\s]+` does: at white space, and between words and other
// characters.
void Whitespace(std::string_view text, const EmitWord& emit) {
  enum Class { kSpace, kWord, kOther } run = kSpace;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const char32_t c = DecodeUtf8(text, &pos);
    const Class next = IsWordCharacter(c) ? kWord : IsWhitespace(c) ? kSpace : kOther;
    if (next == run) {
      continue;
    }
    if (run != kSpace) {
      emit(text.substr(begin, at - begin));
    }
    begin = at;
    run = next;
  }
  if (run != kSpace) {
    emit(text.substr(begin));
  }
}

// A pre-tokenizer that needs to know only the text.
template <void (*split)(std::string_view text, const EmitWord& emit)>
PreTokenizer Plain(const Json&) {
  return [](std::string_view text, bool, const EmitWord& emit) { split(text, emit); };
}

struct NamedBehavior {
  const char* name;
  SplitBehavior behavior;
};
constexpr std::array kBehaviors = {
    NamedBehavior{"Removed", SplitBehavior::kRemoved},
    NamedBehavior{"Isolated", SplitBehavior::kIsolated},
    NamedBehavior{"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    NamedBehavior{"MergedWithNext", SplitBehavior::kMergedWithNext},
    NamedBehavior{"Contiguous", SplitBehavior::kContiguous},
};

// `type` is that of the pre_tokenizer, for messages.
SplitBehavior BehaviorFromName(const std::string& type, const std::string& name) {
  for (const NamedBehavior& row : kBehaviors) {
    if (name == row.name) {
      return row.behavior;
    }
  }
  throw PartError("pre_tokenizer", type + " has behavior '" + name + "', which is not supported",
                  "Lathe supports " + JoinNames(kBehaviors, &NamedBehavior::name));
}

PreTokenizer PunctuationFromJson(const Json& json) {
  const SplitBehavior behavior =
      BehaviorFromName("Punctuation", json.value("behavior", "Isolated"));
  return [=](std::string_view text, bool, const EmitWord& emit) {
    SplitAtCharacters(text, IsPunctuation, behavior, emit);
  };
}

PreTokenizer DigitsFromJson(const Json& json) {
  const SplitBehavior behavior = json.value("individual_digits", false)
                                     ? SplitBehavior::kIsolated
                                     : SplitBehavior::kContiguous;
  return [=](std::string_view text, bool, const EmitWord& emit) {
    SplitAtCharacters(text, IsNumeric, behavior, emit);
  };
}

PreTokenizer SplitAtText(const std::string& delimiter, SplitBehavior behavior, bool invert) {
  return [=](std::string_view text, bool, const EmitWord& emit) {
    const auto for_each_match = [&](const OnMatch& on_match) {
      for (size_t pos = text.find(delimiter); pos != std::string_view::npos;
           pos = text.find(delimiter, pos + delimiter.size())) {
        on_match(pos, pos + delimiter.size());
      }
    };
    SplitText(text, for_each_match, behavior, invert, emit);
  };
}

PreTokenizer CharDelimiterSplitFromJson(const Json& json) {
  const std::string delimiter = json.at("delimiter");
  Check(!delimiter.empty() && Utf8SequenceLength(delimiter[0]) == delimiter.size(), "pre_tokenizer",
        "CharDelimiterSplit has the delimiter '", delimiter, "', which is not one character");
  return SplitAtText(delimiter, SplitBehavior::kRemoved, /*invert=*/false);
}

PreTokenizer SplitFromJson(const Json& json) {
  const SplitBehavior behavior = BehaviorFromName("Split", json.at("behavior"));
  const bool invert = json.value("invert", false);
  const Json& pattern = json.at("pattern");
  if (pattern.contains("String")) {
    const std::string delimiter = pattern["String"];
    Check(!delimiter.empty(), "pre_tokenizer", "Split has an empty pattern");
    return SplitAtText(delimiter, behavior, invert);
  }
  return
      [=, regex = Regex(pattern.at("Regex"))](std::string_view text, bool, const EmitWord& emit) {
        const auto for_each_match = [&](const OnMatch& on_match) {
          regex.ForEachMatch(text, on_match);
        };
        SplitText(text, for_each_match, behavior, invert, emit);
      };
}

// Returns the number of ByteLevel among the parts, and the parts of a Sequence in it.
int64_t CountByteLevels(const Json& json) {
  const std::string type = json.at("type");
  if (type != "Sequence") return type == "ByteLevel" ? 1 : 0;
  int64_t count = 0;
  for (const Json& part : json.at("pretokenizers")) count += CountByteLevels(part);
  return count;
}

// Makes words of `length` characters. The last one may be shorter.
PreTokenizer FixedLengthFromJson(const Json& json) {
  constexpr uint64_t kDefaultLength = 5;
  const Json length = json.value("length", Json(kDefaultLength));
  Check(length.is_number_unsigned() && length.get<uint64_t>() > 0, "pre_tokenizer",
        "FixedLength has the length ", DumpJson(length), ", which is not a positive whole number");
  return [most = length.get<uint64_t>()](std::string_view text, bool, const EmitWord& emit) {
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      for (uint64_t i = 0; i < most && end < text.size(); ++i) {
        end += Utf8SequenceLength(text[end]);
      }
      emit(text.substr(begin, end - begin));
    }
  };
}

// Begins a word where the script changes. Characters without a script belong to the word before
// them; those at the text's begin are dropped, as in `tokenizers`.
void UnicodeScripts(std::string_view text, const EmitWord& emit) {
  int32_t run = kNoScript;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const int32_t script = ScriptOf(DecodeUtf8(text, &pos));
    if (script == kNoScript || script == run) {
      continue;
    }
    if (run != kNoScript) {
      emit(text.substr(begin, at - begin));
    }
    begin = at;
    run = script;
  }
  if (run != kNoScript) {
    emit(text.substr(begin));
  }
}

PreTokenizer SequenceFromJson(const Json& json) {
  // Each may make two or more bytes of one, so many of them would fill the memory.
  constexpr int64_t kMostByteLevels = 2;
  const int64_t byte_levels = CountByteLevels(json);
  Check(byte_levels <= kMostByteLevels, "pre_tokenizer", "Sequence has ByteLevel ", byte_levels,
        " times, which is not supported; it may have ", kMostByteLevels);
  PreTokenizer all;
  for (const Json& part : json.at("pretokenizers")) {
    PreTokenizer next = PreTokenizerFromJson(part);
    if (all == nullptr) {
      all = std::move(next);
      continue;
    }
    all = [first = std::move(all), second = std::move(next)](std::string_view text, bool at_start,
                                                             const EmitWord& emit) {
      // A word begins the text if it points to the text's begin. Words that were rewritten point
      // elsewhere; then nothing was dropped, and the first word begins the text.
      const std::less<const char*> before;
      const char* const end = text.data() + text.size();
      bool first_word = true;
      first(text, at_start, [&](std::string_view word) {
        const bool rewritten = before(word.data(), text.data()) || !before(word.data(), end);
        second(word, at_start && (rewritten ? first_word : word.data() == text.data()), emit);
        first_word = false;
      });
    };
  }
  return all == nullptr ? PreTokenizerFromJson(nullptr) : all;
}

constexpr std::array kKinds = {
    Kind<PreTokenizer>{"BertPreTokenizer", Plain<BertPreTokenize>},
    Kind<PreTokenizer>{"ByteLevel", ByteLevelFromJson},
    Kind<PreTokenizer>{"WhitespaceSplit", Plain<WhitespaceSplit>},
    Kind<PreTokenizer>{"Whitespace", Plain<Whitespace>},
    Kind<PreTokenizer>{"Punctuation", PunctuationFromJson},
    Kind<PreTokenizer>{"Digits", DigitsFromJson},
    Kind<PreTokenizer>{"Split", SplitFromJson},
    Kind<PreTokenizer>{"CharDelimiterSplit", CharDelimiterSplitFromJson},
    Kind<PreTokenizer>{"FixedLength", FixedLengthFromJson},
    Kind<PreTokenizer>{"UnicodeScripts", Plain<UnicodeScripts>},
    Kind<PreTokenizer>{"Metaspace", MetaspaceFromJson},
    Kind<PreTokenizer>{"Sequence", SequenceFromJson},
};

}  // namespace

PreTokenizer PreTokenizerFromJson(const Json& json) {
  if (json.is_null()) {
    return [](std::string_view text, bool, const EmitWord& emit) {
      if (!text.empty()) {
        emit(text);
      }
    };
  }
  return MakePart("pre_tokenizer", kKinds, json.at("type"), json);
}

}  // namespace lathe
