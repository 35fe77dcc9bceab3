#include "lathe/train/rows/data_split.h"

#include "lathe/core/base/error.h"
#include "lathe/train/rows/data_files.h"

namespace lathe {

DataSplit TrainingSplit(const FinetuneArguments& options) {
  return {.name = "training",
          .prefix = "train",
          .option = OptionName("train_file"),
          .files = DataFiles(options.train_file, OptionName("train_file")),
          .rows = options.validation_split > 0 ? DataSplit::Rows::kTraining : DataSplit::Rows::kAll,
          .share = options.validation_split,
          .drops_duplicates = options.drop_duplicates,
          .wanted = options.do_train,
          .max_rows = options.max_train_samples,
          .weight_column = options.sample_weight_column};
}

DataSplit ValidationSplit(const FinetuneArguments& options) {
  const bool evaluates = options.do_eval || (options.do_train && options.eval_strategy != "no");
  if (options.do_train && options.validation_split > 0) {
    DataSplit split = TrainingSplit(options);
    split.name = split.prefix = "validation";
    split.rows = DataSplit::Rows::kValidating;
    split.wanted = evaluates;
    split.max_rows = options.max_eval_samples;
    split.weight_column.clear();
    return split;
  }
  return {.name = "validation",
          .prefix = "validation",
          .option = OptionName("validation_file"),
          .files = DataFiles(options.validation_file, OptionName("validation_file")),
          .drops_duplicates = options.drop_duplicates,
          .wanted = evaluates && !options.validation_file.empty(),
          .max_rows = options.max_eval_samples};
}

DataSplit TestSplit(const FinetuneArguments& options) {
  return {.name = "test",
          .prefix = "test",
          .option = OptionName("test_file"),
          .files = DataFiles(options.test_file, OptionName("test_file")),
          .wanted = options.do_predict && !options.test_file.empty(),
          .labelled = false,
          .max_rows = options.max_predict_samples};
}

std::string NameForPeople(const DataSplit& split) {
  const std::string files = NameOfFiles(split.files);
  return split.rows == DataSplit::Rows::kValidating
             ? OptionName("validation_split") + " of " + files
             : files;
}

}  // namespace lathe
