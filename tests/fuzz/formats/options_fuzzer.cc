// The file of options that `finetune` takes as its first argument, or as --json_config.
#include <string>

#include "lathe/apps/options/options.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  ParseOptions({ScratchFile(LATHE_FUZZ_FILE, input)});
}
