// A table of texts and labels, in the format that the extension of LATHE_FUZZ_FILE tells. It is
// parsed as a whole and block by block, with the same rows.
#include <cstdlib>
#include <iostream>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/data/datasets/text_table_reader.h"
#include "lathe/tests/fuzz/fuzzer.h"

namespace {

void Use(const lathe::TextTable& table) {
  lathe::fuzz::CallAll({[&] { lathe::ChooseTextColumns(table, {}, table.names.back()); },
                        [&] { lathe::LabelSet::Infer({&table.column(table.names.back())}); }});
}

// Reads the file with a few bytes at a time, and returns the blocks as one table.
lathe::TextTable ReadBlocks(const std::string& path, lathe::InvalidUtf8 invalid) {
  constexpr int64_t kBlockBytes = 16;
  lathe::TextTableReader reader(path, invalid, kBlockBytes);
  lathe::TextTable all = reader.Next();
  for (lathe::TextTable rows = reader.Next(); rows.rows() > 0; rows = reader.Next()) {
    if (rows.names != all.names) std::abort();
    for (size_t c = 0; c < rows.columns.size(); ++c)
      all.columns[c].insert(all.columns[c].end(), rows.columns[c].begin(), rows.columns[c].end());
    all.lines.insert(all.lines.end(), rows.lines.begin(), rows.lines.end());
    all.elements.insert(all.elements.end(), rows.elements.begin(), rows.elements.end());
    all.unusable.insert(rows.unusable.begin(), rows.unusable.end());
  }
  return all;
}

// Returns what can't be used and why, a line for each column.
std::string Problems(const lathe::TextTable& table) {
  std::string lines;
  for (const auto& [name, value] : table.unusable)
    lines += lathe::NameOfRow(name, value.line, value.element) + ": " + value.problem + "\n";
  return lines;
}

// Ends the process unless both ways of reading refuse the input, or both give the same rows.
void Compare(std::string_view input, lathe::InvalidUtf8 invalid) {
  std::string whole_error, blocks_error;
  lathe::TextTable whole, blocks;
  const auto error_of = [](const auto& read) -> std::string {
    try {
      read();
      return "";
    } catch (const lathe::Error& e) {
      return e.message();
    }
  };
  const std::string path = lathe::fuzz::ScratchFile(LATHE_FUZZ_FILE, input);
  whole_error = error_of([&] { whole = lathe::ParseTextTable(path, input, invalid); });
  blocks_error = error_of([&] { blocks = ReadBlocks(path, invalid); });
  if (whole_error.empty() == blocks_error.empty() && whole.names == blocks.names &&
      whole.columns == blocks.columns && whole.lines == blocks.lines &&
      whole.elements == blocks.elements && Problems(whole) == Problems(blocks)) {
    return;
  }
  std::cerr << "as a whole: " << whole.rows() << " rows " << whole_error
            << "\nin blocks: " << blocks.rows() << " rows " << blocks_error << std::endl;
  std::abort();
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  for (const InvalidUtf8 invalid : {InvalidUtf8::kError, InvalidUtf8::kReplace})
    Compare(input, invalid);
  CallAll({[&] { Use(ParseTextTable(LATHE_FUZZ_FILE, input)); },
           [&] { Use(ParseTextTable(LATHE_FUZZ_FILE, input, InvalidUtf8::kReplace)); }});
}
