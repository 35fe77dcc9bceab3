// config.json: the configuration, its labels, and the model that it describes, without values.
#include <filesystem>
#include <memory>

#include "lathe/models/config/config.h"
#include "lathe/models/pretrained.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  ScratchFile("config.json", input);
  const PretrainedConfig config = AutoConfig::FromPretrained(ScratchFolder());
  CallAll({[&] { config.label_names(); },
           [&] { PretrainedConfig::FromText(config.ToString(), "config.json"); },
           [&] { AutoModelForSequenceClassification::WithoutValues(config); },
           [&] { AutoModelForSequenceClassification::WithoutValues(config, {.num_labels = 3}); }});
}
