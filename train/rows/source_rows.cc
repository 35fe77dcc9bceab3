#include "lathe/train/rows/source_rows.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/train/rows/data_files.h"
#include "lathe/train/rows/read_table.h"
#include "lathe/train/rows/row_filter.h"

namespace lathe {
namespace {

// Throws for a pipe: to open it once more would wait for a writer that is gone.
void CheckReadableTwice(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code) || std::filesystem::is_regular_file(path, code)) return;
  throw InvalidArgument(path + ": is no regular file, so it can't be read twice");
}

}  // namespace

std::map<int64_t, SourceRow> ReadSourceRows(const RowSource& source, std::vector<int64_t> samples) {
  std::map<int64_t, SourceRow> found;
  if (samples.empty()) return found;
  std::sort(samples.begin(), samples.end());
  for (const std::string& path : source.split.files) CheckReadableTwice(path);
  RowFilter filter(source.split, source.options, source.kind,
                   source.rule ? &*source.rule : nullptr);
  auto next = samples.begin();
  int64_t first = 0;  // the number of the block's first sample
  ForEachBlockWhile(source.split, source.options, [&](TextTable& rows, size_t file) {
    filter.Apply(rows, source.columns);
    for (; next != samples.end() && *next < first + rows.rows(); ++next) {
      const auto place = static_cast<size_t>(*next - first);
      SourceRow& row = found[*next];
      row = {.file = file,
             .line = rows.lines[place],
             .element = rows.element(*next - first),
             .texts = {rows.column(source.columns.first)[place]}};
      if (!source.columns.second.empty())
        row.texts.push_back(rows.column(source.columns.second)[place]);
    }
    first += rows.rows();
    return next != samples.end();
  });
  if (next != samples.end()) {
    throw DataLoss(NameOfFiles(source.split.files) + ": there are only " + std::to_string(first) +
                   " rows of the data now; there were more before");
  }
  return found;
}

}  // namespace lathe
