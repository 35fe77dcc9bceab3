#include "lathe/apps/lathe/predict.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <span>
#include <utility>

#include "lathe/apps/cli/download_alarm.h"
#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/inference_flags.h"
#include "lathe/apps/lathe/prediction_rows.h"
#include "lathe/apps/lathe/predictor.h"
#include "lathe/apps/lathe/text_source.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/hub/resolve_checkpoint.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/train/rows/column_numbers.h"
#include "lathe/train/rows/data_files.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/rows/read_table.h"
#include "lathe/train/rows/text_columns.h"
#include "lathe/train/rows/trained_columns.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Predicts the label of each text with a model that finetune saved, or all labels if\n"
    "a text may have several. Prints a line with a JSON object for each text, or gives the\n"
    "rows of a file back with predictions.\n"
    "\n"
    "Usage:\n"
    "  lathe predict MODEL_DIR TEXT... [options]\n"
    "  lathe predict MODEL_DIR [options] < lines.txt    # one text on each line\n"
    "  lathe predict MODEL_DIR --file data.csv --text_columns a,b --output out.csv\n"
    "\n"
    "MODEL_DIR may also be the name of a classifier on the Hub, as owner/name.\n";

struct PredictOptions : InferenceOptions {
  std::string model_dir;
  std::vector<std::string> texts;
  bool all_scores = false, pairs = false, help = false;
  std::vector<std::string> files;  // or patterns
  std::string output;
  DataArguments data;  // the columns of texts
  OpenColumns open;    // what no option says about columns
  std::string help_text;
};

// Throws unless the texts come from one place.
void CheckSource(const PredictOptions& o) {
  if (o.files.empty()) {
    for (const auto& [given, name] :
         {std::pair(!o.data.text_columns.empty(), "--text_columns"),
          std::pair(!o.data.text_column_names.empty(), "--text_column_names"),
          std::pair(!o.output.empty(), "--output")}) {
      if (given) {
        throw InvalidArgument(std::string(name) + " needs --file",
                              "name the files whose rows are to be predicted");
      }
    }
    return;
  }
  if (!o.texts.empty()) {
    throw InvalidArgument("--file and the text \"" + o.texts.front() + "\" contradict each other",
                          "leave one of them out");
  }
  if (o.pairs) {
    throw InvalidArgument("--file and --pairs contradict each other",
                          "name two columns with --text_columns instead of --pairs");
  }
  CheckTextColumns(o.data);
}

// It is long because it is a table: one statement for each flag.
void AddPredictFlags(FlagTable& flags, PredictOptions& o) {
  flags.Group("Options");
  flags.Add("all_scores", &o.all_scores,
            "print the scores of all labels, not only of those that are predicted");
  flags
      .Add("file", &o.files,
           "predict the rows of a .csv, .tsv, .json or .jsonl file with named columns, or of "
           "several: a.csv b.csv, a.csv,b.csv or 'data/*.csv'")
      .ValueName("FILE")
      .KeepCommas();
  flags.Add("text_columns", &o.data.text_columns,
            "with --file, the one or two columns of text, by name or number (default: those of the "
            "training if the file has them; else sentence1,sentence2, or else the first one or two "
            "other than \"label\")");
  flags.Add("text_column_names", &o.data.text_column_names,
            "with --file, in place of --text_columns: any number of columns, by name or number, "
            "that make one text together, in this order");
  flags
      .Add("text_column_delimiter", &o.data.text_column_delimiter,
           "what stands between the texts of --text_column_names")
      .ValueName("TEXT")
      .default_value = "a space";
  flags
      .Add("output", &o.output,
           "with --file, write its rows with predictions to this file, in the same format, and "
           "print nothing; several files become one. Rows of compressed files (.gz, .zst) can't be "
           "written again")
      .ValueName("FILE");
  flags.Add("pairs", &o.pairs, "each line or TEXT holds two texts with a tab between them");
  AddInferenceFlags(flags, &o);
  flags.Add("help", &o.help, "show this text");
}

// As --file takes several names, it takes the model's folder, too, in `--file data.csv MODEL_DIR`.
void TakeModelFromFiles(PredictOptions& o) {
  if (!o.texts.empty() || o.files.size() < 2) return;
  const std::string format = TableFormat(o.files.back());
  if (format == ".csv" || format == ".tsv" || format == ".json" || format == ".jsonl") return;
  o.texts.push_back(o.files.back());
  o.files.pop_back();
}

PredictOptions ParsePredictOptions(const std::vector<std::string>& args) {
  PredictOptions o;
  FlagTable flags(kUsage);
  AddPredictFlags(flags, o);
  o.help_text = flags.Help();
  o.texts = flags.Parse(args);
  if (o.help) return o;
  TakeModelFromFiles(o);
  if (o.texts.empty()) {
    throw InvalidArgument("MODEL_DIR is missing",
                          "usage: lathe predict MODEL_DIR [TEXT...] [options]");
  }
  o.open = {.texts = o.data.text_columns.empty() && o.data.text_column_names.empty(),
            .delimiter = !flags.given("text_column_delimiter"),
            .label = false};
  ReadPrecision(flags, &o);
  o.model_dir = o.texts.front();
  o.texts.erase(o.texts.begin());
  CheckSource(o);
  return o;
}

PredictorOptions PredictorOptionsOf(const PredictOptions& options, bool pairs) {
  return {.model_dir = options.model_dir,
          .pairs = pairs,
          .max_seq_length = options.max_seq_length,
          .device = options.device,
          .mixed_precision = options.mixed_precision};
}

void Print(const Predictor& predictor, std::span<const Prediction> predictions, bool all_scores) {
  for (const Prediction& prediction : predictions) {
    std::cout << DumpJson(
                     PredictionJson(prediction, predictor.kind(), predictor.names(), all_scores))
              << '\n';
  }
  if (!(std::cout << std::flush)) throw UnwrittenOutput();  // stop if nobody reads the answers
}

void PredictTexts(const PredictOptions& options) {
  Predictor predictor(PredictorOptionsOf(options, options.pairs));
  TextSource source(options.texts, options.invalid_utf8);
  const auto answer = [&] {
    std::vector<Prediction> predictions;
    try {
      predictor.Compute(&predictions);
    } catch (const Error&) {  // of one of the texts
      Print(predictor, predictions, options.all_scores);
      throw;
    }
    Print(predictor, predictions, options.all_scores);
  };
  try {
    while (const auto text = source.Next()) {
      predictor.Add(SplitPair(*text, options.pairs, source.Where()), source.Where());
      if (predictor.num_pending() == options.batch_size || source.WouldWait()) answer();
    }
  } catch (const Error&) {
    answer();  // answers the texts before the bad line
    throw;
  }
  answer();
}

// Predicts the rows of files, block by block.
class FilePrediction {
 public:
  // Keeps a reference to the options.
  explicit FilePrediction(const PredictOptions& options)
      : options_(options),
        split_{.name = "data", .option = "--file", .files = DataFiles(options.files, "--file")} {}

  const std::vector<std::string>& files() const { return split_.files; }
  const Predictor& predictor() const { return *predictor_; }

  // Calls `begin` with the first block once the model is loaded. Then calls `use` with the
  // predictions of each batch of rows: the block that they lie in, the first row, and the
  // predictions.
  void Run(const std::function<void(const TextTable& block)>& begin,
           const std::function<void(const TextTable& block, int64_t first,
                                    const std::vector<Prediction>& predictions)>& use);

 private:
  // Finds the columns of texts in the first block. Throws if they aren't there. Returns a note for
  // people, which may be empty.
  std::string FindTexts(const TextTable& block);
  // Gives a row to the predictor. An error without a hint gets one that names --file.
  void AddRow(const TextTable& block, int64_t row, const TextPair& texts);

  const PredictOptions& options_;
  DataSplit split_;
  TextColumns columns_;  // unless columns are joined
  JoinedColumns join_;
  std::optional<Predictor> predictor_;
};

std::string FilePrediction::FindTexts(const TextTable& block) {
  FinetuneArguments arguments;
  static_cast<DataArguments&>(arguments) = options_.data;
  std::string note;
  if (options_.open.any()) {
    if (const auto trained = ReadTrainedColumns(options_.model_dir))
      note = TakeTrainedColumns(*trained, block, options_.open, &arguments);
  }
  arguments = WithColumnNames(std::move(arguments), block);
  join_ = ColumnsToJoin(arguments);
  if (!join_.names.empty()) {
    JoinedTexts(block, join_);
    return note;
  }
  columns_ = ChooseTextColumns(block, arguments.text_columns);
  return note.empty() ? NoteOnTextColumns(columns_, arguments) : note;
}

void FilePrediction::AddRow(const TextTable& block, int64_t row, const TextPair& texts) {
  try {
    predictor_->Add(texts, block.Where(row));
  } catch (const Error& e) {
    throw WithFlagHint(e, split_.option);
  }
}

void FilePrediction::Run(
    const std::function<void(const TextTable&)>& begin,
    const std::function<void(const TextTable&, int64_t, const std::vector<Prediction>&)>& use) {
  for (const std::string& file : files()) CheckNoFolder(file, split_.option);
  FinetuneArguments reading;  // joins no columns, since the file's own ones stay as they are
  reading.invalid_utf8 = options_.invalid_utf8;
  ForEachBlock(split_, reading, [&](const TextTable& block, size_t) {
    if (!predictor_) {
      const std::string note = FindTexts(block);  // before the model is loaded
      predictor_.emplace(PredictorOptionsOf(options_, !columns_.second.empty()));
      begin(block);
      // Nothing but the rows can be wrong now.
      if (!note.empty()) std::cerr << "note: " << note << std::endl;
    }
    const std::vector<std::string> joined =
        join_.names.empty() ? std::vector<std::string>() : JoinedTexts(block, join_);
    const std::vector<std::string>& texts =
        join_.names.empty() ? block.column(columns_.first) : joined;
    const std::vector<std::string>* second =
        columns_.second.empty() ? nullptr : &block.column(columns_.second);
    for (int64_t first = 0; first < block.rows(); first += options_.batch_size) {
      for (int64_t row = first; row < std::min(first + options_.batch_size, block.rows()); ++row) {
        const auto place = static_cast<size_t>(row);
        TextPair pair{.first = texts[place]};
        if (second != nullptr) pair.second = (*second)[place];
        AddRow(block, row, pair);
      }
      use(block, first, predictor_->Compute());
    }
  });
}

void PredictFiles(const PredictOptions& options, FilePrediction& work) {
  if (options.output.empty()) {
    work.Run([](const TextTable&) {},
             [&](const TextTable&, int64_t, const std::vector<Prediction>& predictions) {
               Print(work.predictor(), predictions, options.all_scores);
             });
    return;
  }
  PredictionRows::CheckPaths(work.files(), options.output);
  WriteFileAtomically(options.output, [&](const std::string& temporary) {
    std::optional<PredictionRows> rows;
    work.Run(
        [&](const TextTable& block) {
          rows.emplace(work.files(), options.output,
                       PredictionRows::Options{.kind = work.predictor().kind(),
                                               .names = work.predictor().names(),
                                               .all_scores = options.all_scores});
          rows->Open(temporary, block);
        },
        [&](const TextTable& block, int64_t first, const std::vector<Prediction>& predictions) {
          rows->Write(block, first, predictions);
        });
    rows->Close();
  });
}

// Names the flags that help.
Error WithPredictHint(const Error& e, const PredictOptions& options,
                      const std::vector<std::string>& files) {
  const std::string texts =
      options.data.text_column_names.empty() ? "--text_columns" : "--text_column_names";
  if (e.detail<MissingColumn>() != nullptr)
    return e.WithHint("name another column with " + texts + ", or rename one in the file");
  if (e.detail<UnusableColumn>() != nullptr)
    return e.WithHint("give each row a text there, or name the columns of texts with " + texts);
  if (!e.hint().empty()) return e;
  const auto* about = e.detail<AboutFile>();
  if (about == nullptr) return e;
  if (about->path == options.output) return e.WithHint("check --output");
  return std::find(files.begin(), files.end(), about->path) != files.end()
             ? e.WithHint("check --file")
             : e;
}

int Predict(const PredictOptions& options) {
  if (options.num_threads > 0) omp_set_num_threads(static_cast<int>(options.num_threads));
  if (options.deterministic) UseDeterministicGemms(true);
  std::ios::sync_with_stdio(false);  // lets in_avail tell what is buffered
  if (options.files.empty()) {
    PredictTexts(options);
    return 0;
  }
  FilePrediction work(options);
  try {
    PredictFiles(options, work);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& e) {
    throw WithPredictHint(e, options, work.files());
  }
  return 0;
}

}  // namespace

int RunPredict(const std::vector<std::string>& args) {
  PredictOptions options;
  if (const auto code = ParseOrEnd(&options, ParsePredictOptions, args)) return *code;
  {
    const DownloadAlarm alarm;
    options.model_dir =
        ResolveCheckpoint(options.model_dir,
                          {.config = true, .tokenizer = true, .columns = true, .weights = true},
                          options.hub)
            .folder;
  }
  return Predict(options);
}

}  // namespace lathe
