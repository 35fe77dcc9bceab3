#include "lathe/data/tokenizers/normalizer.h"

#include <memory>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/data/tokenizers/charsmap.h"
#include "lathe/data/tokenizers/unicode.h"
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

// Replaces each run of at least `min_length` white-space characters by `content`. With
// `only_space`, only U+0020 counts as white space. With `also_single_breaks`, a single \n, \r or \t
// is replaced, too.
std::string ReplaceRuns(std::string_view text, size_t min_length, bool only_space,
                        bool also_single_breaks, std::string_view content) {
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
    } else {
      if (length == 0) {
        DecodeUtf8(text, &next);
      }
      out += text.substr(begin, next - begin);
    }
    pos = next;
  }
  return out;
}

// Supports only the few expressions of published tokenizers. A general regex engine would bring its
// own Unicode rules.
Normalizer MakeRegexReplace(const std::string& regex, const std::string& content) {
  const auto runs = [&](size_t min_length, bool only_space, bool breaks) -> Normalizer {
    return [=](std::string text) {
      return ReplaceRuns(text, min_length, only_space, breaks, content);
    };
  };
  if (regex == " {2,}") {
    return runs(2, true, false);
  }
  if (regex == " +") {
    return runs(1, true, false);
  }
  if (regex == "\\s+") {
    return runs(1, false, false);
  }
  if (regex == "\\s{2,}") {
    return runs(2, false, false);
  }
  if (regex == "\\s{2,}|[\\n\\r\\t]") {
    return runs(2, false, true);
  }
  throw InvalidArgument(
      "normalizer Replace has the regular expression '" + regex + "', which is not supported",
      "supported are ' {2,}', ' +', '\\s+', '\\s{2,}' and '\\s{2,}|[\\n\\r\\t]'");
}

Normalizer UnicodeNormalizer(NormalizationForm form) {
  return [form](std::string text) {
    return IsAscii(text) ? std::move(text) : NormalizeUnicode(text, form);
  };
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

PreTokenizer MakeMetaspace(std::string replacement, bool prepend, bool split) {
  return [=](std::string_view text, const EmitWord& emit) {
    std::string marked;
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
  // Files from before version 0.19 of `tokenizers` have add_prefix_space instead of prepend_scheme.
  const std::string scheme =
      json.value("prepend_scheme", json.value("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "never") {
    throw InvalidArgument("pre_tokenizer Metaspace has prepend_scheme '" + scheme +
                          "', supported are 'always' and 'never'");
  }
  return MakeMetaspace(json.value("replacement", "▁"), scheme == "always",
                       json.value("split", true));
}

}  // namespace

Normalizer MakeBertNormalizer(const BertNormalizerOptions& options) {
  return [options](std::string text) {
    const bool ascii = IsAscii(text);
    if (options.clean_text) {
      text = CleanText(text);
    }
    if (options.handle_chinese_chars && !ascii) {
      text = SpaceCjk(text);
    }
    if (options.strip_accents.value_or(options.lowercase) && !ascii) {
      text = DropCharacters(NormalizeUnicode(text, NormalizationForm::kNfd), IsNonspacingMark);
    }
    return options.lowercase ? LowerCase(text) : text;
  };
}

Normalizer MakeSequence(std::vector<Normalizer> parts) {
  return [parts = std::move(parts)](std::string text) {
    for (const Normalizer& part : parts) {
      text = part(std::move(text));
    }
    return text;
  };
}

Normalizer MakeReplace(std::string pattern, std::string content) {
  Check(!pattern.empty(), "normalizer", "Replace has an empty pattern");
  return [pattern = std::move(pattern), content = std::move(content)](std::string text) {
    size_t pos = text.find(pattern);
    if (pos == std::string::npos) {
      return text;
    }
    std::string out;
    size_t begin = 0;
    for (; pos != std::string::npos; pos = text.find(pattern, begin)) {
      out.append(text, begin, pos - begin).append(content);
      begin = pos + pattern.size();
    }
    return out.append(text, begin);
  };
}

std::string StripAccents(std::string text) {
  return IsAscii(text) ? std::move(text) : DropCharacters(text, IsMark);
}

std::string StripWhitespace(std::string_view text, bool left, bool right) {
  size_t begin = 0;
  while (left && begin < text.size()) {
    size_t next = begin;
    if (!IsWhitespace(DecodeUtf8(text, &next))) {
      break;
    }
    begin = next;
  }
  size_t end = text.size();
  while (right && end > begin) {
    const char32_t c = DecodeUtf8Before(text, end);
    if (!IsWhitespace(c)) {
      break;
    }
    std::string bytes;
    AppendUtf8(c, &bytes);
    end -= bytes.size();
  }
  return std::string(text.substr(begin, end - begin));
}

Normalizer NormalizerFromJson(const Json& json) {
  if (json.is_null()) {
    return [](std::string text) { return text; };
  }
  const std::string type = json.at("type");
  if (type == "Sequence") {
    std::vector<Normalizer> parts;
    for (const Json& part : json.at("normalizers")) {
      parts.push_back(NormalizerFromJson(part));
    }
    return MakeSequence(std::move(parts));
  }
  if (type == "BertNormalizer") {
    BertNormalizerOptions options;
    options.clean_text = json.value("clean_text", true);
    options.handle_chinese_chars = json.value("handle_chinese_chars", true);
    options.lowercase = json.value("lowercase", true);
    if (json.contains("strip_accents") && !json["strip_accents"].is_null()) {
      options.strip_accents = json["strip_accents"].get<bool>();
    }
    return MakeBertNormalizer(options);
  }
  if (type == "NFC") {
    return UnicodeNormalizer(NormalizationForm::kNfc);
  }
  if (type == "NFD") {
    return UnicodeNormalizer(NormalizationForm::kNfd);
  }
  if (type == "NFKC") {
    return UnicodeNormalizer(NormalizationForm::kNfkc);
  }
  if (type == "NFKD") {
    return UnicodeNormalizer(NormalizationForm::kNfkd);
  }
  if (type == "Lowercase") {
    return [](std::string text) { return LowerCase(text); };
  }
  if (type == "StripAccents") {
    return StripAccents;
  }
  if (type == "Strip") {
    return [left = json.value("strip_left", true), right = json.value("strip_right", true)](
               std::string text) { return StripWhitespace(text, left, right); };
  }
  if (type == "Prepend") {
    return [prefix = json.at("prepend").get<std::string>()](std::string text) {
      return text.empty() ? text : prefix + text;
    };
  }
  if (type == "Replace") {
    const Json& pattern = json.at("pattern");
    const std::string content = json.at("content");
    return pattern.contains("String") ? MakeReplace(pattern["String"], content)
                                      : MakeRegexReplace(pattern.at("Regex"), content);
  }
  if (type == "Precompiled") {
    // A model trained without a normalization rule has null here.
    const Json& map = json.at("precompiled_charsmap");
    auto charsmap = std::make_shared<const Charsmap>(
        map.is_null() ? std::string() : DecodeBase64(map.get<std::string>()));
    return [charsmap](std::string text) { return charsmap->Normalize(text); };
  }
  throw InvalidArgument(
      "normalizer '" + type + "' is not supported",
      "supported are BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, "
      "Strip, Prepend, Replace, Precompiled and Sequence");
}

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

PreTokenizer PreTokenizerFromJson(const Json& json) {
  if (json.is_null()) {
    return [](std::string_view text, const EmitWord& emit) {
      if (!text.empty()) {
        emit(text);
      }
    };
  }
  const std::string type = json.at("type");
  if (type == "BertPreTokenizer") {
    return BertPreTokenize;
  }
  if (type == "WhitespaceSplit") {
    return WhitespaceSplit;
  }
  if (type == "Metaspace") {
    return MetaspaceFromJson(json);
  }
  if (type == "Sequence") {
    PreTokenizer all;
    for (const Json& part : json.at("pretokenizers")) {
      PreTokenizer next = PreTokenizerFromJson(part);
      if (all == nullptr) {
        all = std::move(next);
        continue;
      }
      all = [first = std::move(all), second = std::move(next)](std::string_view text,
                                                               const EmitWord& emit) {
        first(text, [&](std::string_view word) { second(word, emit); });
      };
    }
    return all == nullptr ? PreTokenizerFromJson(nullptr) : all;
  }
  throw InvalidArgument("pre_tokenizer '" + type + "' is not supported",
                        "supported are BertPreTokenizer, WhitespaceSplit, Metaspace and Sequence");
}

}  // namespace lathe
