// A table of texts and labels, in the format that the extension of LATHE_FUZZ_FILE tells.
#include <vector>

#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/tests/fuzz/fuzzer.h"

namespace {

void Use(const lathe::TextTable& table) {
  const std::vector<std::string>& labels = table.columns.back();
  lathe::fuzz::CallAll({[&] { lathe::ChooseTextColumns(table, {}, table.names.back()); },
                        [&] { lathe::LabelSet::Infer({&labels}); }});
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  CallAll({[&] { Use(ParseTextTable(LATHE_FUZZ_FILE, input)); },
           [&] { Use(ParseTextTable(LATHE_FUZZ_FILE, input, InvalidUtf8::kReplace)); }});
}
