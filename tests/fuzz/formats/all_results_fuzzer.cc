// The results of earlier runs in an output folder. What can't be read counts as none.
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lathe/apps/finetune/found_output.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  // The program adds its own results to these.
  const nlohmann::json results = ReadResults(ScratchFile("all_results.json", input));
  if (!results.is_object()) throw std::logic_error("the results are no object");
}
