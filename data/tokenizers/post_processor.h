// Post-processors: the part of a tokenizer.json that puts special tokens around the texts.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "lathe/data/tokenizers/pipeline_tokenizer.h"

namespace lathe {

// `cls A sep` and `cls A sep B sep`; B and the last token have type 1.
PipelineTokenizer::Templates BertTemplates(int32_t cls, int32_t sep);
// `cls A sep` and `cls A sep sep B sep`; all types are 0.
PipelineTokenizer::Templates RobertaTemplates(int32_t cls, int32_t sep);

// Makes the templates that tokenizer.json's `post_processor` describes; null adds no special
// tokens. Throws InvalidArgument for an unknown type.
PipelineTokenizer::Templates PostProcessorFromJson(const nlohmann::json& json);

}  // namespace lathe
