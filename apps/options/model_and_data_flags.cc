#include "lathe/apps/cli/hub_flags.h"
#include "lathe/apps/options/flag_groups.h"

namespace lathe {

void AddModelFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Model");
  flags
      .Add("model_name_or_path", &o.model_name_or_path,
           "folder of the model to start from, or its name on the Hub, as owner/name")
      .ValueName("MODEL");
  flags
      .Add("config_name", &o.config_name,
           "folder or name of the config.json to use instead of the model's; without "
           "--model_name_or_path, "
           "training starts from fresh weights")
      .ValueName("MODEL");
  flags
      .Add("tokenizer_name", &o.tokenizer_name,
           "folder or name of the tokenizer to use instead of the model's")
      .ValueName("MODEL");
  AddHubFlags(flags, &o.model_revision, &o.token, &o.cache_dir);
  flags
      .Add("config_overrides", &o.config_overrides,
           "values to change in the config, such as hidden_dropout_prob=0,num_hidden_layers=2")
      .ValueName("A=B,C=D");
  flags
      .Add("num_labels", &o.num_labels,
           "number of labels (default: as many as the training file has)")
      .Min(1);
  flags
      .Add("problem_type", &o.problem_type,
           "what the labels mean (default: the training file decides)")
      .Choices({"single_label_classification", "multi_label_classification", "regression"});
  flags.Add("ignore_mismatched_sizes", &o.ignore_mismatched_sizes,
            "give fresh values to parameters whose shape in the model's file differs; otherwise "
            "these are an error");
}

void AddDataFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Data");
  flags.Add("train_file", &o.train_file, "training data").ValueName("FILE").KeepCommas();
  flags.Add("validation_file", &o.validation_file, "evaluation data")
      .ValueName("FILE")
      .KeepCommas();
  flags.Add("test_file", &o.test_file, "data to predict labels for; labels in it are ignored")
      .ValueName("FILE")
      .KeepCommas();
  flags.Add(
      "text_columns", &o.text_columns,
      "one or two columns of text, by name or number (default: sentence1,sentence2 if there are "
      "such columns, else the first one or two that are not the label; without --do_train, "
      "those of the model's training if the file has them)");
  flags.Add("text_column_names", &o.text_column_names,
            "in place of --text_columns: any number of columns, by name or number, that make one "
            "text together, in this order");
  flags
      .Add("text_column_delimiter", &o.text_column_delimiter,
           "what stands between the texts of --text_column_names")
      .ValueName("TEXT")
      .default_value = "a space";
  flags
      .Add("label_column", &o.label_column,
           "column of the labels, by name or number (default: label; without --do_train, that of "
           "the model's training if the file has it)")
      .default_value = "";
  flags
      .Add(
          "max_seq_length", &o.max_seq_length,
          "cut longer texts to N tokens; auto: to as many as the longest training text has, but no "
          "more than the model takes")
      .Min(1)
      .Word("auto", 0);
  flags
      .Add("max_train_samples", &o.max_train_samples,
           "use only the first N rows of the training data, after other options have left rows out")
      .Min(1);
  flags
      .Add("max_eval_samples", &o.max_eval_samples,
           "use only the first N rows of --validation_file")
      .Min(1);
  flags
      .Add("max_predict_samples", &o.max_predict_samples,
           "use only the first N rows of --test_file")
      .Min(1);
  flags.Add("invalid_utf8", &o.invalid_utf8, "what happens to text that is not UTF-8")
      .Choices({"error", "replace"});
  flags
      .Add("dataset_cache", &o.dataset_cache,
           "folder that keeps the tokenized data, which then need not fit into memory; none: keep "
           "them in memory; auto: lathe/datasets beside the Hub's cache for a file of 16 MiB or "
           "more, else memory")
      .ValueName("DIR");
  flags.Add("overwrite_cache", &o.overwrite_cache,
            "tokenize the data anew even if --dataset_cache has them");
}

void AddTaskFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("What to do (at least one of --do_train, --do_eval, --do_predict)");
  flags.Add("do_train", &o.do_train, "train on --train_file and save the model");
  flags.Add("do_eval", &o.do_eval, "evaluate on --validation_file at the end");
  flags.Add("do_predict", &o.do_predict, "predict the labels of --test_file");
  flags.Add("output_dir", &o.output_dir, "folder to write the model and all results to")
      .ValueName("DIR");
  flags.Add(
      "overwrite_output_dir", &o.overwrite_output_dir,
      "allow an --output_dir that is not empty (to train) or holds another model (to evaluate)");
}

}  // namespace lathe
