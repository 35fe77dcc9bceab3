// data_columns.json beside a model, and the reading of files by what it says.
#include <stdexcept>
#include <string>

#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/train/rows/trained_columns.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  const TrainedColumns columns = ParseTrainedColumns(std::string(input), "input");
  if (ParseTrainedColumns(FormatTrainedColumns(columns), "again") != columns)
    throw std::logic_error("what is written has other columns than what was read");
  TextTable table;
  table.path = "dev.csv";
  table.names = {"text", "label"};
  table.columns.resize(2);
  DataArguments options;
  TakeTrainedColumns(columns, table, {}, &options);
}
