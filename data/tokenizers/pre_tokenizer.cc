#include "lathe/data/tokenizers/pre_tokenizer.h"

#include <array>
#include <string>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/unicode/unicode.h"
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
  // The values of prepend_scheme: whether a text that begins with no space gets a mark.
  struct Scheme {
    const char* name;
    bool prepend;
  };
  constexpr std::array kSchemes = {Scheme{"always", true}, Scheme{"never", false}};
  // Files from before version 0.19 of `tokenizers` have add_prefix_space instead of prepend_scheme.
  const std::string name =
      json.value("prepend_scheme", json.value("add_prefix_space", true) ? "always" : "never");
  for (const Scheme& scheme : kSchemes) {
    if (name == scheme.name) {
      return MakeMetaspace(json.value("replacement", "▁"), scheme.prepend,
                           json.value("split", true));
    }
  }
  throw InvalidArgument(
      "pre_tokenizer Metaspace has the prepend_scheme '" + name + "', which is not supported",
      "Lathe supports " + JoinNames(kSchemes, [](const Scheme& scheme) {
        return "'" + std::string(scheme.name) + "'";
      }));
}

PreTokenizer SequenceFromJson(const Json& json) {
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

constexpr std::array kKinds = {
    Kind<PreTokenizer>{"BertPreTokenizer",
                       [](const Json&) -> PreTokenizer { return BertPreTokenize; }},
    Kind<PreTokenizer>{"WhitespaceSplit",
                       [](const Json&) -> PreTokenizer { return WhitespaceSplit; }},
    Kind<PreTokenizer>{"Metaspace", MetaspaceFromJson},
    Kind<PreTokenizer>{"Sequence", SequenceFromJson},
};

}  // namespace

PreTokenizer PreTokenizerFromJson(const Json& json) {
  if (json.is_null()) {
    return [](std::string_view text, const EmitWord& emit) {
      if (!text.empty()) {
        emit(text);
      }
    };
  }
  return MakePart("pre_tokenizer", kKinds, json.at("type"), json);
}

}  // namespace lathe
