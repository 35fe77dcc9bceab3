#include "lathe/data/tokenizers/normalizer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/unicode/charsmap.h"
#include "lathe/data/tokenizers/unicode/regex.h"
#include "lathe/data/tokenizers/unicode/unicode.h"
#include "lathe/data/tokenizers/words/byte_level.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

std::string CleanText(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = DecodeUtf8(text, &pos);
    if (c == 0 || c == 0xFFFD || IsBertControl(c)) {
      continue;
    }
    AppendUtf8(IsWhitespace(c) ? U' ' : c, &out);
  }
  return out;
}

std::string SpaceCjk(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = DecodeUtf8(text, &pos);
    const std::string_view bytes = text.substr(begin, pos - begin);
    if (IsCjk(c)) {
      out += ' ';
      out += bytes;
      out += ' ';
    } else {
      out += bytes;
    }
  }
  return out;
}

template <typename Drop>
std::string DropCharacters(std::string_view text, Drop drop) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (!drop(DecodeUtf8(text, &pos))) {
      out += text.substr(begin, pos - begin);
    }
  }
  return out;
}

// A text may grow to this size. No language needs a tenth of it, but a damaged file could ask for
// more than all memory.
size_t MostBytes(size_t before) { return (size_t{1} << 16) + 32 * before; }
void CheckGrowth(size_t bytes, size_t most) {
  Check(bytes <= most, "normalizer", "the rules of tokenizer.json make a text longer than ", most,
        " bytes");
}

// Makes a normalizer of a function that rewrites each character by itself, whatever follows it.
template <typename Rewrite>
Normalizer EachCharacter(Rewrite rewrite) {
  return Normalizer([rewrite](std::string text, size_t* start) {
    if (*start > 0) *start = rewrite(text.substr(0, *start)).size();
    return rewrite(std::move(text));
  });
}

// Returns the first place that is no less than `size` and where a character of `text` ends.
size_t ToCharacterEnd(std::string_view text, size_t size) {
  size_t end = 0;
  while (end < size && end < text.size()) end += Utf8SequenceLength(text[end]);
  return end;
}

// Counts how many bytes of a new text stand for the first character, while pieces of the old text
// come into the new one. As in `tokenizers`, what replaces a piece stands for the piece's last
// character.
class StartCounter {
 public:
  explicit StartCounter(size_t* start) : old_start_(*start), start_(start) { *start_ = 0; }
  // The bytes [begin, end) of the old text are kept.
  void Keep(size_t begin, size_t end) {
    if (begin < old_start_) *start_ += std::min(end, old_start_) - begin;
  }
  // They are replaced by `size` bytes.
  void Replace(size_t end, size_t size) {
    if (end <= old_start_) *start_ += size;
  }

 private:
  const size_t old_start_;
  size_t* const start_;
};

// Replaces each run of at least `min_length` white-space characters by `content`. With
// `only_space`, only U+0020 counts as white space. With `also_single_breaks`, a single \n, \r or \t
// is replaced, too.
std::string ReplaceRuns(std::string_view text, size_t min_length, bool only_space,
                        bool also_single_breaks, std::string_view content, size_t* start) {
  StartCounter counter(start);
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    size_t length = 0;
    size_t next = pos;
    char32_t last = 0;
    while (next < text.size()) {
      size_t after = next;
      const char32_t c = DecodeUtf8(text, &after);
      if (only_space ? c != ' ' : !IsWhitespace(c)) {
        break;
      }
      last = c;
      next = after;
      ++length;
    }
    const bool single_break =
        also_single_breaks && length == 1 && (last == '\n' || last == '\r' || last == '\t');
    if (length > 0 && (length >= min_length || single_break)) {
      out += content;
      counter.Replace(next, content.size());
      CheckGrowth(out.size(), MostBytes(text.size()));
    } else {
      if (length == 0) {
        DecodeUtf8(text, &next);
      }
      counter.Keep(begin, next);
      out += text.substr(begin, next - begin);
    }
    pos = next;
  }
  return out;
}

// Regular expressions of published tokenizers, which ReplaceRuns does faster than a regex engine.
struct RunPattern {
  const char* text;
  size_t min_length;
  bool only_space;
  bool also_single_breaks;
};
constexpr std::array kRunPatterns = {
    RunPattern{" {2,}", 2, true, false},
    RunPattern{" +", 1, true, false},
    RunPattern{"\\s+", 1, false, false},
    RunPattern{"\\s{2,}", 2, false, false},
    RunPattern{"\\s{2,}|[\\n\\r\\t]", 2, false, true},
};

Normalizer MakeRegexReplace(const std::string& text, const std::string& content) {
  for (const RunPattern& run : kRunPatterns) {
    if (text == run.text) {
      return Normalizer([&run, content](std::string from, size_t* start) {
        return ReplaceRuns(from, run.min_length, run.only_space, run.also_single_breaks, content,
                           start);
      });
    }
  }
  return Normalizer([regex = Regex(text), content](std::string from, size_t* start) {
    StartCounter counter(start);
    std::string out;
    size_t done = 0;
    regex.ForEachMatch(from, [&](size_t begin, size_t end) {
      out.append(from, done, begin - done).append(content);
      counter.Keep(done, begin);
      counter.Replace(end, content.size());
      CheckGrowth(out.size(), MostBytes(from.size()));
      done = end;
    });
    counter.Keep(done, from.size());
    return done == 0 && out.empty() ? from : out.append(from, done);
  });
}

Normalizer MakeReplace(std::string pattern, std::string content) {
  Check(!pattern.empty(), "normalizer", "Replace has an empty pattern");
  return Normalizer([pattern = std::move(pattern), content = std::move(content)](std::string text,
                                                                                 size_t* start) {
    size_t pos = text.find(pattern);
    if (pos == std::string::npos) {
      return text;
    }
    StartCounter counter(start);
    std::string out;
    size_t begin = 0;
    for (; pos != std::string::npos; pos = text.find(pattern, begin)) {
      out.append(text, begin, pos - begin).append(content);
      counter.Keep(begin, pos);
      counter.Replace(pos + pattern.size(), content.size());
      CheckGrowth(out.size(), MostBytes(text.size()));
      begin = pos + pattern.size();
    }
    counter.Keep(begin, text.size());
    return out.append(text, begin);
  });
}

Normalizer ReplaceFromJson(const Json& json) {
  const Json& pattern = json.at("pattern");
  const std::string content = json.at("content");
  return pattern.contains("String") ? MakeReplace(pattern["String"], content)
                                    : MakeRegexReplace(pattern.at("Regex"), content);
}

Normalizer BertFromJson(const Json& json) {
  const bool clean_text = json.value("clean_text", true);
  const bool handle_chinese_chars = json.value("handle_chinese_chars", true);
  const bool lowercase = json.value("lowercase", true);
  // Null means the same as `lowercase`.
  const Json accents = json.value("strip_accents", Json());
  const bool strip_accents = accents.is_null() ? lowercase : accents.get<bool>();
  return EachCharacter([=](std::string text) {
    const bool ascii = IsAscii(text);
    if (clean_text) {
      text = CleanText(text);
    }
    if (handle_chinese_chars && !ascii) {
      text = SpaceCjk(text);
    }
    if (strip_accents && !ascii) {
      text = DropCharacters(NormalizeUnicode(text, NormalizationForm::kNfd), IsNonspacingMark);
    }
    return lowercase ? LowerCase(text) : text;
  });
}

template <NormalizationForm form>
Normalizer UnicodeFromJson(const Json&) {
  return Normalizer([](std::string text, size_t* start) {
    if (IsAscii(text)) return text;
    std::string out = NormalizeUnicode(text, form);
    if (*start > 0) {
      // Characters may be joined with the first one, and have its place then.
      const size_t alone = NormalizeUnicode(text.substr(0, *start), form).size();
      *start = ToCharacterEnd(out, std::max<size_t>(alone, 1));
    }
    return out;
  });
}

Normalizer LowercaseFromJson(const Json&) {
  return EachCharacter([](std::string text) { return LowerCase(text); });
}

// Removes every combining mark (categories M*), and thus the accents of text that is in NFD or
// NFKD.
Normalizer StripAccentsFromJson(const Json&) {
  return EachCharacter([](std::string text) {
    return IsAscii(text) ? std::move(text) : DropCharacters(text, IsMark);
  });
}

Normalizer StripFromJson(const Json& json) {
  const bool left = json.value("strip_left", true);
  const bool right = json.value("strip_right", true);
  return Normalizer([=](std::string text, size_t* start) {
    const size_t begin = left ? SkipWhitespace(text, 0) : 0;
    const size_t end = right ? SkipWhitespaceBefore(text, text.size(), begin) : text.size();
    *start = std::clamp(*start, begin, end) - begin;
    return text.substr(begin, end - begin);
  });
}

Normalizer PrependFromJson(const Json& json) {
  return Normalizer(
      [prefix = json.at("prepend").get<std::string>()](std::string text, size_t* start) {
        if (*start > 0) *start += prefix.size();
        return text.empty() ? text : prefix + text;
      });
}

Normalizer PrecompiledFromJson(const Json& json) {
  // A model trained without a normalization rule has null here.
  const Json& map = json.at("precompiled_charsmap");
  auto charsmap = std::make_shared<const Charsmap>(
      map.is_null() ? std::string() : DecodeBase64(map.get<std::string>()));
  return Normalizer([charsmap](std::string text, size_t* start) {
    std::string out = charsmap->Normalize(text);
    // `tokenizers` gives the first character's place to the first one that is left.
    if (*start > 0) *start = ToCharacterEnd(out, 1);
    return out;
  });
}

// Applies the rules of NMT: drops control characters, and makes spaces of white space, of
// characters without width and of U+FFFD.
Normalizer NmtFromJson(const Json&) {
  return EachCharacter([](std::string text) {
    std::string out;
    out.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) {
      const char32_t c = DecodeUtf8(text, &pos);
      const auto in = [c](char32_t low, char32_t high) { return low <= c && c <= high; };
      if (in(0x01, 0x08) || in(0x0E, 0x1F) || c == 0x0B || c == 0x7F || c == 0x8F || c == 0x9F) {
        continue;
      }
      const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                         in(0x200B, 0x200F) || in(0x2028, 0x2029) || c == 0x2581 || c == 0xFEFF ||
                         c == 0xFFFD;
      AppendUtf8(space ? U' ' : c, &out);
    }
    return out;
  });
}

Normalizer ByteLevelFromJson(const Json&) {
  return EachCharacter([](std::string text) {
    std::string out;
    AppendByteAlphabet(text, &out);
    return out;
  });
}

// Appends the parts of a Sequence, and those of a Sequence in it, in order.
void AppendParts(const Json& json, std::vector<Normalizer>* parts) {
  for (const Json& part : json.at("normalizers")) {
    if (part.is_object() && part.value("type", Json()) == "Sequence") {
      AppendParts(part, parts);
    } else {
      parts->push_back(NormalizerFromJson(part));
    }
  }
}

Normalizer SequenceFromJson(const Json& json) {
  std::vector<Normalizer> parts;
  AppendParts(json, &parts);
  return Normalizer([parts = std::move(parts)](std::string text, size_t* start) {
    const size_t most = MostBytes(text.size());
    for (const Normalizer& part : parts) {
      text = part(std::move(text), start);
      CheckGrowth(text.size(), most);
    }
    return text;
  });
}

constexpr std::array kKinds = {
    Kind<Normalizer>{"BertNormalizer", BertFromJson},
    Kind<Normalizer>{"NFC", UnicodeFromJson<NormalizationForm::kNfc>},
    Kind<Normalizer>{"NFD", UnicodeFromJson<NormalizationForm::kNfd>},
    Kind<Normalizer>{"NFKC", UnicodeFromJson<NormalizationForm::kNfkc>},
    Kind<Normalizer>{"NFKD", UnicodeFromJson<NormalizationForm::kNfkd>},
    Kind<Normalizer>{"Lowercase", LowercaseFromJson},
    Kind<Normalizer>{"StripAccents", StripAccentsFromJson},
    Kind<Normalizer>{"Strip", StripFromJson},
    Kind<Normalizer>{"Prepend", PrependFromJson},
    Kind<Normalizer>{"Replace", ReplaceFromJson},
    Kind<Normalizer>{"Precompiled", PrecompiledFromJson},
    Kind<Normalizer>{"Nmt", NmtFromJson},
    Kind<Normalizer>{"ByteLevel", ByteLevelFromJson},
    Kind<Normalizer>{"Sequence", SequenceFromJson},
};

}  // namespace

Normalizer NormalizerFromJson(const Json& json) {
  if (json.is_null()) {
    return Normalizer([](std::string text, size_t*) { return text; });
  }
  return MakePart("normalizer", kKinds, json.at("type"), json);
}

}  // namespace lathe
