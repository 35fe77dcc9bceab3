#include "lathe/apps/lathe/predict.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
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
#include "lathe/data/datasets/text_table_reader.h"
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
  std::string file, output;
  DataArguments data;  // the columns of texts
  OpenColumns open;    // what no option says about columns
  std::string help_text;
};

// Throws unless the texts come from one place.
void CheckSource(const PredictOptions& o) {
  if (o.file.empty()) {
    for (const auto& [given, name] :
         {std::pair(!o.data.text_columns.empty(), "--text_columns"),
          std::pair(!o.data.text_column_names.empty(), "--text_column_names"),
          std::pair(!o.output.empty(), "--output")}) {
      if (given) {
        throw InvalidArgument(std::string(name) + " needs --file",
                              "name the file whose rows are to be predicted");
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
      .Add("file", &o.file,
           "predict the rows of a .csv, .tsv, .json or .jsonl file with named columns")
      .ValueName("FILE");
  flags.Add(
      "text_columns", &o.data.text_columns,
      "with --file, the one or two columns of text (default: those of the training if the file "
      "has them; else sentence1,sentence2, or else the first one or two other than \"label\")");
  flags.Add(
      "text_column_names", &o.data.text_column_names,
      "with --file, in place of --text_columns: any number of columns that make one text together, "
      "in this order");
  flags
      .Add("text_column_delimiter", &o.data.text_column_delimiter,
           "what stands between the texts of --text_column_names")
      .ValueName("TEXT")
      .default_value = "a space";
  flags
      .Add("output", &o.output,
           "with --file, write its rows with predictions to this file, in the same format, and "
           "print nothing")
      .ValueName("FILE");
  flags.Add("pairs", &o.pairs, "each line or TEXT holds two texts with a tab between them");
  AddInferenceFlags(flags, &o);
  flags.Add("help", &o.help, "show this text");
}

PredictOptions ParsePredictOptions(const std::vector<std::string>& args) {
  PredictOptions o;
  FlagTable flags(kUsage);
  AddPredictFlags(flags, o);
  o.help_text = flags.Help();
  o.texts = flags.Parse(args);
  if (o.help) return o;
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
    std::cout << PredictionJson(prediction, predictor.kind(), predictor.names(), all_scores).dump()
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

// Calls `use` with the predictions of each batch of rows: the block that they lie in, the first
// row, and the predictions. `block` is the first block of the reader. The file's own columns stay
// as they are, so joined texts are in no column.
template <typename Use>
void PredictRows(TextTableReader& reader, TextTable block, const TextColumns& columns,
                 const JoinedColumns& join, int64_t batch_size, Predictor& predictor, Use use) {
  for (; block.rows() > 0; block = reader.Next()) {
    std::vector<std::string> joined;
    if (!join.names.empty()) joined = JoinedTexts(block, join);
    const std::vector<std::string>& first =
        join.names.empty() ? block.column(columns.first) : joined;
    const std::vector<std::string>* second =
        columns.second.empty() ? nullptr : &block.column(columns.second);
    for (int64_t begin = 0; begin < block.rows(); begin += batch_size) {
      for (int64_t row = begin; row < std::min(begin + batch_size, block.rows()); ++row) {
        const auto place = static_cast<size_t>(row);
        TextPair pair{.first = first[place]};
        if (second != nullptr) pair.second = (*second)[place];
        predictor.Add(pair, block.Where(row));
      }
      use(block, begin, predictor.Compute());
    }
  }
}

// The columns of a file that hold its texts.
struct TextPlaces {
  TextColumns columns;  // unless columns are joined
  JoinedColumns join;
  std::string note = {};  // for people; may be empty
};

// Finds the columns in the first block of the file. Throws if they aren't there.
TextPlaces FindTexts(const TextTable& block, const PredictOptions& options) {
  DataArguments data = options.data;
  TextPlaces places;
  if (options.open.any()) {
    if (const auto trained = ReadTrainedColumns(options.model_dir))
      places.note = TakeTrainedColumns(*trained, block, options.open, &data);
  }
  places.join = ColumnsToJoin(data);
  if (!places.join.names.empty()) {
    JoinedTexts(block, places.join);
    return places;
  }
  places.columns = ChooseTextColumns(block, data.text_columns);
  if (places.note.empty()) places.note = NoteOnTextColumns(places.columns, data);
  return places;
}

void PredictFile(const PredictOptions& options) {
  CheckNoFolder(options.file, "--file");
  const InvalidUtf8 invalid =
      options.invalid_utf8 == "replace" ? InvalidUtf8::kReplace : InvalidUtf8::kError;
  if (!options.output.empty()) PredictionRows::CheckPaths(options.file, options.output);
  TextTableReader reader(options.file, invalid);
  const TextTable block = reader.Next();
  const TextPlaces places = FindTexts(block, options);  // before the model is loaded
  Predictor predictor(PredictorOptionsOf(options, !places.columns.second.empty()));
  // Once nothing but the rows can be wrong.
  const auto note = [&] {
    if (!places.note.empty()) std::cerr << "note: " << places.note << std::endl;
  };
  if (options.output.empty()) {
    note();
    PredictRows(reader, block, places.columns, places.join, options.batch_size, predictor,
                [&](const TextTable&, int64_t, const std::vector<Prediction>& predictions) {
                  Print(predictor, predictions, options.all_scores);
                });
    return;
  }
  PredictionRows rows(
      options.file, options.output,
      {.kind = predictor.kind(), .names = predictor.names(), .all_scores = options.all_scores});
  WriteFileAtomically(options.output, [&](const std::string& temporary) {
    rows.Open(temporary, block);
    note();
    PredictRows(
        reader, block, places.columns, places.join, options.batch_size, predictor,
        [&](const TextTable& of, int64_t first, const std::vector<Prediction>& predictions) {
          rows.Write(of, first, predictions);
        });
    rows.Close();
  });
}

// Names the flags that help.
Error WithPredictHint(const Error& e, const PredictOptions& options) {
  if (e.detail<MissingColumn>() != nullptr) {
    const bool joins = !options.data.text_column_names.empty();
    return e.WithHint(std::string("name another column with ") +
                      (joins ? "--text_column_names" : "--text_columns") +
                      ", or rename one in the file");
  }
  if (!options.output.empty() && e.message().starts_with(options.output))
    return WithFlagHint(e, "--output");
  return e.message().starts_with(options.file) ? WithFlagHint(e, "--file") : e;
}

int Predict(const PredictOptions& options) {
  if (options.num_threads > 0) omp_set_num_threads(static_cast<int>(options.num_threads));
  if (options.deterministic) UseDeterministicGemms(true);
  std::ios::sync_with_stdio(false);  // lets in_avail tell what is buffered
  if (options.file.empty()) {
    PredictTexts(options);
    return 0;
  }
  try {
    PredictFile(options);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& e) {
    throw WithPredictHint(e, options);
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
        ResolveCheckpoint(options.model_dir, {.config = true, .tokenizer = true, .weights = true},
                          options.hub)
            .folder;
  }
  return Predict(options);
}

}  // namespace lathe
