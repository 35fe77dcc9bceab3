// The arguments of a training run, with the names and defaults of run_glue and TrainingArguments. A
// program sets the fields, or apps/options/options.h reads them from a command line.
//
//   TrainingArguments arguments;
//   arguments.learning_rate = 3e-5;
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lathe {

struct ModelArguments {
  // Folders, or names of models on a Hub.
  std::string model_name_or_path, config_name, tokenizer_name;
  std::string model_revision = "main";  // of all models on a Hub
  std::string token, cache_dir;         // empty: as the environment says
  std::string config_overrides, problem_type;
  std::optional<int64_t> num_labels;
  bool ignore_mismatched_sizes = false;
};

struct DataArguments {
  // Files, patterns such as data/*.csv, or several of them with commas between them.
  std::vector<std::string> train_file, validation_file, test_file;
  std::vector<std::string> text_columns;  // one text, or a pair; empty: the file decides
  // In place of text_columns: columns that make one text together, with the delimiter between them.
  std::vector<std::string> text_column_names;
  std::string text_column_delimiter = " ";
  std::string label_column = "label";
  int64_t max_seq_length = 128;  // 0: of the longest training text, at most the model's limit
  std::optional<int64_t> max_train_samples, max_eval_samples, max_predict_samples;
  std::string invalid_utf8 = "error";
  // Where tokenized data are kept: a folder, "none" or "auto". "auto" keeps files of 16 MiB or more
  // in lathe/datasets of the folder of Hugging Face's caches.
  std::string dataset_cache = "auto";
  bool overwrite_cache = false;

  // True: the labels are scores, whatever they look like. False: they are names. Empty: they
  // decide.
  std::optional<bool> do_regression;
  std::string metric_name;  // a metric that evaluations must have; empty: any

  // Choice of rows.
  double validation_split = 0;   // the share of train_file that validates; 0: none
  bool drop_duplicates = false;  // of texts and label, within training and validation data
  // The column of train_file that says how much each row counts in the loss; empty: all count
  // alike.
  std::string sample_weight_column;
};

struct TrainingArguments {
  // Task and output.
  bool do_train = false, do_eval = false, do_predict = false;
  std::string output_dir;
  bool overwrite_output_dir = false;

  // How the model is trained: batches, optimizer, schedule, order of the samples.
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 64;  // Trainer's default is 8, which makes products slower
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 5e-5, weight_decay = 0;
  std::string device = "auto";
  bool cuda_graphs = true;
  std::string mixed_precision = "no";
  bool gradient_checkpointing = false;
  bool deterministic = false;
  bool bf16 = false, fp16 = false;
  double fp16_init_scale = 65536;
  // "adamw_torch", "adamw_torch_fused" and "adamw_hf" are PyTorch's AdamW; others: OptimizerNames.
  std::string optim = "adamw_torch";
  std::string optim_args;  // "momentum=0.9,nesterov=true" (optimizer_arguments.h)
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: no clipping
  double num_train_epochs = 3.0;
  int64_t max_steps = -1;  // above 0: replaces num_train_epochs
  std::string lr_scheduler_type = "linear", lr_scheduler_kwargs;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  bool shuffle_train = true, group_by_length = false, dataloader_drop_last = false;
  int64_t seed = 42;
  std::optional<int64_t> data_seed;

  // The loss, in training and in evaluation.
  //
  // "none", "balanced", "LABEL=WEIGHT,LABEL=WEIGHT" or a .json file. With classes these are the
  // weights of PyTorch's cross_entropy, and balanced ones are n / (classes * count), as those of
  // scikit-learn. With several labels at once they are pos_weight, and balanced ones are negatives
  // / positives. Counts are those of the training samples.
  std::string class_weights = "none";
  double label_smoothing_factor = 0;  // as Trainer's
  double focal_gamma = 0;             // 0: no focal factor

  // What is trained, and how fast.
  //
  // Empty: everything. A number N freezes the embeddings and the first N layers. "embeddings" and
  // "encoder" freeze these. Anything else is a regular expression that is sought in the names of
  // parameters.
  std::string freeze_layers;
  double head_learning_rate = 0;  // of the parameters that are not the encoder's; 0: learning_rate
  double layerwise_lr_decay = 1;  // each layer's rate is that of the layer above times this

  // Logging and evaluation. Numbers of steps below 1 are a share of all steps.
  double logging_steps = 500;
  bool logging_first_step = false;
  std::string eval_strategy = "no";
  double eval_steps = 0;  // 0: logging_steps
  // A task of GLUE (data/metrics/glue_tasks.h). Evaluations then have run_glue's metrics of it,
  // too, and labels that have its names are numbered in its order. finetune also takes its columns
  // and, for stsb, scores.
  std::string task_name;
  std::string metric_for_best_model;
  std::optional<bool> greater_is_better;
  bool load_best_model_at_end = false;
  bool disable_tqdm = false;
  bool loss_curve = false;  // below the progress bar, on a terminal
  std::string log_level = "info";
  bool report = true;  // keeps report.html in output_dir up to date

  std::string logging_strategy = "steps";  // "no", "steps" or "epoch": when to log
  // With eval_strategy "steps", the first step that may be evaluated; with "epoch", the first
  // epoch.
  double eval_delay = 0;
  std::string run_name;  // for trackers

  // Early stopping, with the rules of Transformers' EarlyStoppingCallback. A program that sets the
  // patience also gives its Trainer an EarlyStoppingCallback (train/callbacks/).
  //
  // Stop after so many evaluations without an improvement of metric_for_best_model; empty: never.
  std::optional<int64_t> early_stopping_patience;
  double early_stopping_threshold = 0;  // only an improvement by more than this counts

  // When checkpoints are written, and where a training goes on.
  //
  // "no", "steps", "epoch" or "best". Trainer's default is "steps"; here a training writes no more
  // than its model unless it is asked to, as it always has.
  std::string save_strategy = "no";
  double save_steps = 500;  // below 1: a share of all steps
  double save_seconds = 0;  // above 0: also as soon as so much time has passed since the last one
  std::optional<int64_t> save_total_limit;
  bool save_only_model = false;
  std::string save_failure = "continue";  // or "stop"
  std::string resume_from_checkpoint;     // "true", "false" or a folder
  bool resume_anyway = false;             // with other data, another batch size and so on
  bool ignore_data_skip = false;          // has no effect: data are skipped at no cost

  // Trackers (core/trackers/): "tensorboard", "jsonl", "all" or "none".
  std::vector<std::string> report_to;
  std::string logging_dir;  // empty: runs/<time>_<host> in output_dir

  // Decisions (decision_arguments.h).
  //
  // The probability above which one of several labels is predicted. It is a number, or one for each
  // label: as in "a=0.4,b=0.6", in a JSON object or in a .json file. "tune" fits them to the
  // validation data. "" is one half.
  std::string thresholds;
  std::string calibrate = "no";  // or "temperature", which is fitted to the validation data

  // How the work is spread over threads and ranks.
  int64_t num_threads = 0;  // 0: all cores
  double ddp_timeout = 0;   // seconds that a rank may be late; 0: as the environment says
  bool shard_optimizer = true;
  bool share_parameters = true;
};

// Returns the metric that decides which model is best, as evaluations call it: "eval_loss", or what
// metric_for_best_model names.
std::string BestModelMetric(const TrainingArguments& arguments);
// Returns true if a higher value of that metric is better: as greater_is_better says, else for
// everything but losses, errors and times.
bool GreaterIsBetter(const TrainingArguments& arguments);

// Checks the arguments of the Trainer and fills in defaults that follow from others: eval_steps
// and, if evaluations decide anything, metric_for_best_model. Throws InvalidArgument for values
// that are out of range or don't fit each other; errors name the arguments.
void CompleteTrainingArguments(TrainingArguments& arguments);

// All arguments that LoadTask and the Trainer read.
struct FinetuneArguments : ModelArguments, DataArguments, TrainingArguments {};

}  // namespace lathe
