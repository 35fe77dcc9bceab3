#include "lathe/train/task/data_split.h"

#include "lathe/train/task/data_files.h"

namespace lathe {

DataSplit TrainingSplit(const FinetuneArguments& options) {
  return {.name = "training",
          .prefix = "train",
          .flag = "--train_file",
          .files = DataFiles(options.train_file, "--train_file"),
          .wanted = options.do_train,
          .max_rows = options.max_train_samples};
}

DataSplit ValidationSplit(const FinetuneArguments& options) {
  const bool evaluates = options.do_eval || (options.do_train && options.eval_strategy != "no");
  return {.name = "validation",
          .prefix = "validation",
          .flag = "--validation_file",
          .files = DataFiles(options.validation_file, "--validation_file"),
          .wanted = evaluates && !options.validation_file.empty(),
          .max_rows = options.max_eval_samples};
}

DataSplit TestSplit(const FinetuneArguments& options) {
  return {.name = "test",
          .prefix = "test",
          .flag = "--test_file",
          .files = DataFiles(options.test_file, "--test_file"),
          .wanted = options.do_predict && !options.test_file.empty(),
          .labelled = false,
          .max_rows = options.max_predict_samples};
}

}  // namespace lathe
