// The JSON file of `finetune --json_config`.
#include <string>

#include "lathe/apps/cli/options.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  ParseOptions({"--json_config", ScratchFile("options.json", input)});
}
