#include "lathe/data/tokenizers/bpe_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/model.h"
#include "lathe/data/tokenizers/models/bpe.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Appends the merge of a line such as "a b". `where` is for messages.
void AppendMerge(std::string_view line, const std::string& where, Bpe::Merges* merges) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    throw InvalidArgument(where + ": '" + std::string(line) +
                              "' is not a merge, which is two symbols with one space between them",
                          "take the file from the model's source again");
  }
  merges->emplace_back(line.substr(0, space), line.substr(space + 1));
}

bool IsVersionLine(std::string_view line) { return line.starts_with("#version"); }

Bpe::Merges MergesFromJson(const Json& json) {
  Bpe::Merges merges;
  for (const Json& merge : json) {
    if (merge.is_array()) {
      Check(merge.size() == 2, "bpe", "merge ", merges.size() + 1, " has ", merge.size(),
            " symbols, not 2");
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else if (const auto line = merge.get<std::string>(); !IsVersionLine(line)) {
      AppendMerge(line, "merge " + std::to_string(merges.size() + 1), &merges);
    }
  }
  return merges;
}

// Returns the text of a key, or "" if it is missing or null.
std::string TextOf(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? "" : it->get<std::string>();
}

// Calls `make`. An error then names the file.
template <typename Make>
auto NamingFile(const std::string& path, const Make& make) {
  constexpr char kTakeAgain[] = "take the file from the model's source again";
  try {
    return make();
  } catch (const Json::exception& error) {
    throw InvalidArgument(path + ": " + WithoutTag(error.what()), kTakeAgain);
  } catch (const Error& error) {
    throw InvalidArgument(path + ": " + error.message(),
                          error.hint().empty() ? kTakeAgain : error.hint());
  }
}

}  // namespace

std::unique_ptr<SubwordModel> BpeFromJson(const Json& json) {
  const Json dropout = json.value("dropout", Json());
  if (!dropout.is_null() && dropout.get<double>() != 0) {
    throw PartError("model", "BPE with dropout " + DumpJson(dropout) + " is not supported",
                    "set dropout to null: Lathe encodes a text the same way each time");
  }
  BpeOptions options;
  if (const Json unk = json.value("unk_token", Json()); !unk.is_null()) {
    options.unk_token = unk.get<std::string>();
  }
  options.continuing_subword_prefix = TextOf(json, "continuing_subword_prefix");
  options.end_of_word_suffix = TextOf(json, "end_of_word_suffix");
  options.fuse_unk = json.value("fuse_unk", false);
  options.byte_fallback = json.value("byte_fallback", false);
  options.ignore_merges = json.value("ignore_merges", false);
  return std::make_unique<Bpe>(TokensFromVocab(json.at("vocab")), MergesFromJson(json.at("merges")),
                               std::move(options));
}

std::unique_ptr<SubwordModel> BpeFromFiles(const Json& vocab, const std::string& vocab_path,
                                           const std::string& merges,
                                           const std::string& merges_path) {
  Bpe::Merges parsed;
  size_t line_number = 0;
  for (size_t begin = 0; begin < merges.size();) {
    const size_t newline = std::min(merges.find('\n', begin), merges.size());
    std::string_view line = std::string_view(merges).substr(begin, newline - begin);
    begin = newline + 1;
    const std::string where = merges_path + ":" + std::to_string(++line_number);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);  // the file has CR LF line ends
    }
    if (ValidateUtf8(line) != std::string_view::npos) {
      throw InvalidArgument(where + ": the merge is not valid UTF-8",
                            "merges.txt has two symbols a line, in UTF-8");
    }
    if (!line.empty() && !IsVersionLine(line)) {
      AppendMerge(line, where, &parsed);
    }
  }
  std::vector<std::string> tokens = NamingFile(vocab_path, [&] { return TokensFromVocab(vocab); });
  return NamingFile(merges_path,
                    [&] { return std::make_unique<Bpe>(std::move(tokens), std::move(parsed)); });
}

}  // namespace lathe
