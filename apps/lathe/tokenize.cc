#include "lathe/apps/lathe/tokenize.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/apps/cli/download_alarm.h"
#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/hub_flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/text_source.h"
#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Shows what a tokenizer makes of texts: one JSON object a line for each text, with input_ids,\n"
    "tokens and token_type_ids.\n"
    "\n"
    "Usage:\n"
    "  lathe tokenize DIR TEXT... [options]\n"
    "  lathe tokenize DIR [options] < lines.txt\n"
    "\n"
    "DIR holds the tokenizer's files; a model's folder or its name on the Hub will do.\n";

struct TokenizeOptions {
  std::string dir;
  std::vector<std::string> texts;
  bool pairs = false, help = false;
  int64_t max_length = 0;
  std::string invalid_utf8 = "error";
  std::string help_text;
  HubOptions hub;
};

TokenizeOptions ParseTokenizeOptions(const std::vector<std::string>& args) {
  TokenizeOptions o;
  FlagTable flags(kUsage);
  flags.Group("Options");
  flags.Add("pairs", &o.pairs, "each line holds two texts with a tab between them");
  flags
      .Add("max_length", &o.max_length,
           "cut to so many tokens, the special ones counted; 0: never cut")
      .Min(0);
  flags.Add("invalid_utf8", &o.invalid_utf8, "what to do with text that is not UTF-8")
      .Choices({"error", "replace"});
  AddHubFlags(flags, &o.hub);
  flags.Add("help", &o.help, "show this text");
  o.help_text = flags.Help();
  o.texts = flags.Parse(args);
  if (o.help) return o;
  if (o.texts.empty()) {
    throw InvalidArgument("DIR is missing", "lathe tokenize DIR [TEXT...]; --help says more");
  }
  o.dir = o.texts.front();
  o.texts.erase(o.texts.begin());
  return o;
}

}  // namespace

int RunTokenize(const std::vector<std::string>& args) {
  TokenizeOptions options;
  if (const auto code = ParseOrEnd(&options, ParseTokenizeOptions, args)) return *code;
  std::ios::sync_with_stdio(false);  // lets WouldWait tell what is buffered
  const std::shared_ptr<Tokenizer> tokenizer = [&] {
    const DownloadAlarm alarm;
    return AutoTokenizer::FromPretrained(options.dir, options.hub);
  }();
  TextSource source(options.texts, options.invalid_utf8);
  while (const auto text = source.Next()) {
    const TextPair pair = SplitPair(*text, options.pairs, source.Where());
    const Encoding encoding = EncodeAt(source.Where(), *tokenizer, pair, options.max_length);
    nlohmann::ordered_json line = {{"input_ids", encoding.input_ids},
                                   {"tokens", nlohmann::ordered_json::array()},
                                   {"token_type_ids", encoding.token_type_ids}};
    for (const int32_t id : encoding.input_ids) {
      line["tokens"].push_back(tokenizer->IdToToken(id));
    }
    std::cout << DumpJson(line) << '\n';
    // Answers before it waits for the next line, and stops if nobody reads the answers.
    if (source.WouldWait()) std::cout << std::flush;
    if (!std::cout) throw UnwrittenOutput();
  }
  return 0;
}

}  // namespace lathe
