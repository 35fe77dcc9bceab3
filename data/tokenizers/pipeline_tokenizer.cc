#include "lathe/data/tokenizers/pipeline_tokenizer.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

// Calls `encode`. An error of a part, such as a regular expression that takes too many steps, gets
// the tokenizer's file in front.
template <typename Encode>
auto NamingFile(const std::string& file, const Encode& encode) {
  try {
    return encode();
  } catch (const Error& error) {
    if (file.empty()) throw;
    throw Error(error.code(), file + ": " + error.message(), error.hint());
  }
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(Parts parts) : parts_(std::move(parts)) {
  single_template_ = parts_.templates.single;
  pair_template_ = parts_.templates.pair;
  model_max_length_ = parts_.model_max_length;
  truncates_left_ = parts_.truncates_left;
  pad_token_id_ = parts_.pad_token_id;
  vocab_file_ = parts_.vocab_file;
  vocab_size_ = parts_.model->vocabulary().size();
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& token : parts_.added_tokens) {
    vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    if (token.normalized) {
      normalized.push_back(token);
      normalized.back().content =
          NamingFile(vocab_file_, [&] { return parts_.normalizer(token.content); });
    } else {
      raw.push_back(token);
    }
  }
  raw_tokens_ = AddedTokenMatcher(std::move(raw));
  normalized_tokens_ = AddedTokenMatcher(std::move(normalized));
}

std::vector<int32_t> PipelineTokenizer::EncodeText(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);  // tokens of English text have four letters and more
  const auto add = [&](int32_t id) { ids.push_back(id); };
  const EmitWord encode_word = [&](std::string_view word) { parts_.model->Encode(word, &ids); };
  const auto encode_part = [&](std::string_view part) {
    size_t start = part.data() == text.data() ? Utf8SequenceLength(part[0]) : 0;
    const std::string normalized = parts_.normalizer(std::string(part), &start);
    const auto encode = [&](std::string_view piece) {
      const auto begin = static_cast<size_t>(piece.data() - normalized.data());
      parts_.pre_tokenizer(piece, /*at_start=*/begin < start, encode_word);
    };
    normalized_tokens_.Split(normalized, encode, add);
  };
  NamingFile(vocab_file_, [&] { raw_tokens_.Split(text, encode_part, add); });
  return ids;
}

std::optional<int32_t> PipelineTokenizer::TokenToId(std::string_view token) const {
  for (const AddedToken& added : parts_.added_tokens) {
    if (added.content == token) {
      return added.id;
    }
  }
  return parts_.model->vocabulary().Find(token);
}

std::string PipelineTokenizer::IdToToken(int32_t id) const {
  for (const AddedToken& added : parts_.added_tokens) {
    if (added.id == id) {
      return added.content;
    }
  }
  const std::vector<std::string>& tokens = parts_.model->vocabulary().tokens();
  Check(id >= 0 && id < std::ssize(tokens), "tokenizer", "id ", id,
        " is not in the vocabulary, whose ids are below ", vocab_size_);
  return tokens[id];
}

void PipelineTokenizer::SavePretrained(const std::string& dir) const {
  for (const auto& [name, contents] : parts_.files) {
    WriteFileAtomically(dir + "/" + name, contents);
  }
}

}  // namespace lathe
