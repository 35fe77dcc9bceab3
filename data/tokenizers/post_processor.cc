#include "lathe/data/tokenizers/post_processor.h"

#include <array>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/model.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using P = PipelineTokenizer;

int32_t TypeIdOf(const Json& item) {
  constexpr int64_t kLargestTypeId = 1 << 20;
  return static_cast<int32_t>(
      IntegerFromJson(item.value("type_id", Json(0)), "type_id", 0, kLargestTypeId));
}

P::Template TemplateFromJson(const Json& items, const Json& special_tokens) {
  P::Template result;
  for (const Json& item : items) {
    if (item.contains("Sequence")) {
      const Json& sequence = item["Sequence"];
      P::Item place = sequence.at("id") == "A" ? P::First() : P::Second(0);
      place.type_id = TypeIdOf(sequence);
      result.push_back(place);
      continue;
    }
    const Json& special = item.at("SpecialToken");
    const std::string token = special.at("id").get<std::string>();
    for (const Json& id : special_tokens.at(token).at("ids")) {
      result.push_back(P::Special(TokenIdFromJson(id, token), TypeIdOf(special)));
    }
  }
  return result;
}

P::Templates TemplateProcessingFromJson(const Json& json) {
  P::Templates templates;
  templates.single = TemplateFromJson(json.at("single"), json.at("special_tokens"));
  templates.pair = TemplateFromJson(json.at("pair"), json.at("special_tokens"));
  return templates;
}

template <P::Templates (*make)(int32_t cls, int32_t sep)>
P::Templates FixedFromJson(const Json& json) {
  const int32_t cls = TokenIdFromJson(json.at("cls").at(1), "cls");
  const int32_t sep = TokenIdFromJson(json.at("sep").at(1), "sep");
  return make(cls, sep);
}

// It only moves offsets, which Lathe doesn't keep.
P::Templates ByteLevelFromJson(const Json&) { return PostProcessorFromJson(nullptr); }

P::Templates SequenceFromJson(const Json& json) {
  P::Templates templates = PostProcessorFromJson(nullptr);
  bool has_one = false;
  for (const Json& part : json.at("processors")) {
    if (part.at("type") == "ByteLevel") {
      continue;
    }
    if (has_one) {
      throw PartError("post_processor",
                      "Sequence adds special tokens twice, which is not supported",
                      "keep one of the processors besides ByteLevel");
    }
    templates = PostProcessorFromJson(part);
    has_one = true;
  }
  return templates;
}

constexpr std::array kKinds = {
    Kind<P::Templates>{"TemplateProcessing", TemplateProcessingFromJson},
    Kind<P::Templates>{"BertProcessing", FixedFromJson<BertTemplates>},
    Kind<P::Templates>{"RobertaProcessing", FixedFromJson<RobertaTemplates>},
    Kind<P::Templates>{"ByteLevel", ByteLevelFromJson},
    Kind<P::Templates>{"Sequence", SequenceFromJson},
};

}  // namespace

P::Templates BertTemplates(int32_t cls, int32_t sep) {
  return {.single = {P::Special(cls, 0), P::First(), P::Special(sep, 0)},
          .pair = {P::Special(cls, 0), P::First(), P::Special(sep, 0), P::Second(1),
                   P::Special(sep, 1)}};
}

P::Templates RobertaTemplates(int32_t cls, int32_t sep) {
  return {.single = {P::Special(cls, 0), P::First(), P::Special(sep, 0)},
          .pair = {P::Special(cls, 0), P::First(), P::Special(sep, 0), P::Special(sep, 0),
                   P::Second(0), P::Special(sep, 0)}};
}

P::Templates PostProcessorFromJson(const Json& json) {
  if (json.is_null()) {
    return {.single = {P::First()}, .pair = {P::First(), P::Second(1)}};
  }
  return MakePart("post_processor", kKinds, json.at("type"), json);
}

}  // namespace lathe
