#include "lathe/data/tokenizers/unicode/unicode.h"

#include <absl/status/status.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <unicode/uscript.h>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/unicode/newer_characters.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

// Returns true if Unicode `unicode_version` has the character. The Rust libraries' tables are older
// than ICU's and treat younger characters as unassigned.
bool KnownIn(char32_t c, int unicode_version) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] <= unicode_version;
}
constexpr int kCategoriesVersion = 8;      // crate unicode_categories
constexpr int kCombiningMarkVersion = 9;   // crate unicode-normalization-alignments
constexpr int kCombiningClassVersion = 9;  // the same crate
constexpr int kDecompositionVersion = 11;  // the same crate
constexpr int kScriptsVersion = 9;         // crate tokenizers

}  // namespace

bool IsWhitespace(char32_t c) {
  if (c < 0x80) {
    return c == ' ' || (c >= '\t' && c <= '\r');
  }
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

bool IsBertControl(char32_t c) {
  if (c < 0x80) {
    return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  }
  constexpr uint32_t kControl = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & kControl) != 0 && KnownIn(c, kCategoriesVersion);
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  }
  // U+166D was punctuation until Unicode 12, U+111C9 until Unicode 11.
  if (c == 0x166D || c == 0x111C9) {
    return true;
  }
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_P_MASK) != 0 &&
         KnownIn(c, kCategoriesVersion);
}

bool IsCjk(char32_t c) {
  const auto in = [c](char32_t low, char32_t high) { return low <= c && c <= high; };
  return in(0x4E00, 0x9FFF) || in(0x3400, 0x4DBF) || in(0x20000, 0x2A6DF) || in(0x2A700, 0x2B73F) ||
         in(0x2B740, 0x2B81F) || in(0x2B920, 0x2CEAF) || in(0xF900, 0xFAFF) || in(0x2F800, 0x2FA1F);
}

bool IsNonspacingMark(char32_t c) {
  if (c == 0x1734) {
    return true;  // a spacing mark since Unicode 14
  }
  // In the older tables the first two are letters, the last two another kind of mark or
  // punctuation.
  if (c == 0x1885 || c == 0x1886 || c == 0xA9BD || c == 0x111C9) {
    return false;
  }
  return c >= 0x300 && u_charType(static_cast<UChar32>(c)) == U_NON_SPACING_MARK &&
         KnownIn(c, kCategoriesVersion);
}

bool IsMark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3 || c == 0x111C9) {
    return c != 0x111C9;  // their category changed in Unicode 11 and 12
  }
  return c >= 0x300 && (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) != 0 &&
         KnownIn(c, kCombiningMarkVersion);
}

bool IsWordCharacter(char32_t c) {
  const auto code_point = static_cast<UChar32>(c);
  return u_hasBinaryProperty(code_point, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(code_point, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(code_point) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         IsNewerWordCharacter(c);
}

bool IsLetter(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0 || IsNewerLetter(c);
}

bool IsNumber(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0 || IsNewerNumber(c);
}

bool IsNumeric(char32_t c) { return IsNumber(c) || IsNewerNumeric(c); }

int32_t ScriptOf(char32_t c) {
  if (c == ' ' || !KnownIn(c, kScriptsVersion)) {
    return kNoScript;
  }
  // The scripts of the first four changed after Unicode 9.
  switch (c) {
    case 0x589:
    case 0x61C:
      return USCRIPT_COMMON;
    case 0x953:
    case 0x954:
      return USCRIPT_DEVANAGARI;
    case 0x30FC:
      return USCRIPT_HAN;
    default:
      break;
  }
  UErrorCode status = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(static_cast<UChar32>(c), &status);
  switch (script) {
    case USCRIPT_HIRAGANA:
    case USCRIPT_KATAKANA:
      return USCRIPT_HAN;
    case USCRIPT_UNKNOWN:
    case USCRIPT_INVALID_CODE:
      return kNoScript;
    default:
      return script;
  }
}

size_t SkipWhitespace(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if (!IsWhitespace(DecodeUtf8(text, &next))) {
      break;
    }
    pos = next;
  }
  return pos;
}

size_t SkipWhitespaceBefore(std::string_view text, size_t end, size_t limit) {
  while (end > limit && IsWhitespace(DecodeUtf8Before(text, end))) {
    do {
      --end;
    } while (end > limit && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  return end;
}

std::string NormalizeUnicode(std::string_view text, NormalizationForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalizationForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalizationForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalizationForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalizationForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  // Marks whose combining class the library doesn't know stay where they are. The set is made once
  // and never destroyed: other threads may still normalize at exit.
  static const icu::UnicodeSet* const known = [] {
    UErrorCode set_status = U_ZERO_ERROR;
    const std::string pattern = "[[:Age=" + std::to_string(kDecompositionVersion) +
                                ".0:]-[[:^ccc=0:]-[:Age=" + std::to_string(kCombiningClassVersion) +
                                ".0:]]]";
    auto* set = new icu::UnicodeSet(icu::UnicodeString::fromUTF8(pattern), set_status);
    set->freeze();
    return set;
  }();
  std::string out;
  if (U_SUCCESS(status)) {
    const icu::FilteredNormalizer2 filtered(*normalizer, *known);
    icu::StringByteSink<std::string> sink(&out);
    filtered.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                           sink, nullptr, status);
  }
  if (U_FAILURE(status)) {
    throw Error(absl::StatusCode::kInternal,
                std::string("[normalize] ICU failed: ") + u_errorName(status));
  }
  return out;
}

std::string LowerCase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = DecodeUtf8(text, &pos);
    if (c < 0x80) {
      out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    } else if (c == 0x130) {
      // U+0130 is the only character whose unconditional lower-case mapping has two characters: i,
      // U+0307.
      out += "i\xCC\x87";
    } else if (const char32_t newer = NewerLowerCase(c); newer != 0) {
      AppendUtf8(newer, &out);
    } else {
      AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), &out);
    }
  }
  return out;
}

}  // namespace lathe
