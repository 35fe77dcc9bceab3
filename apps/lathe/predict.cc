#include "lathe/apps/lathe/predict.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/hub_flags.h"
#include "lathe/apps/cli/precision.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/text_source.h"
#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/gemm.h"
#include "lathe/core/hub/resolve_checkpoint.h"
#include "lathe/data/metrics/metrics.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/models/config/vocabulary_size.h"
#include "lathe/models/pretrained.h"
#include "lathe/models/weights/load_weights.h"
#include "lathe/train/task/sequence_length.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Predicts the label of each text with a model that finetune saved. Prints a line\n"
    "with a JSON object for each text.\n"
    "\n"
    "Usage:\n"
    "  lathe predict MODEL_DIR TEXT... [options]\n"
    "  lathe predict MODEL_DIR [options] < lines.txt    # one text on each line\n"
    "\n"
    "MODEL_DIR may also be the name of a classifier on the Hub, as owner/name.\n";

struct PredictOptions {
  std::string model_dir;
  std::vector<std::string> texts;
  bool all_scores = false, pairs = false, deterministic = false, bf16 = false, fp16 = false,
       help = false;
  int64_t batch_size = 64, max_seq_length = 0, num_threads = 0;
  std::string invalid_utf8 = "error", device = "auto", mixed_precision = "no";
  std::string help_text;
  HubOptions hub;
};

PredictOptions ParsePredictOptions(const std::vector<std::string>& args) {
  PredictOptions o;
  FlagTable flags(kUsage);
  flags.Group("Options");
  flags.Add("all_scores", &o.all_scores,
            "print the scores of all labels, not only of the best one");
  flags.Add("pairs", &o.pairs, "each line or TEXT holds two texts with a tab between them");
  flags.Add("batch_size", &o.batch_size, "number of texts that are computed together").Min(1);
  flags
      .Add("max_seq_length", &o.max_seq_length,
           "cut longer texts to N tokens; 0: the model's limit")
      .Min(0);
  flags.Add("num_threads", &o.num_threads, "number of CPU threads; 0: all cores").Min(0).Max(1024);
  flags
      .Add("device", &o.device,
           "what computes: auto (a GPU if there is one), cpu, cuda or cuda:NUMBER")
      .ValueName("NAME");
  flags
      .Add("mixed_precision", &o.mixed_precision,
           "precision of activations and products: bf16 is bfloat16, fp16 is float16, on GPUs only")
      .Choices({"no", "bf16", "fp16"});
  flags.Add("bf16", &o.bf16, "short for --mixed_precision bf16");
  flags.Add("fp16", &o.fp16, "short for --mixed_precision fp16");
  flags.Add("deterministic", &o.deterministic,
            "compute the same bits in every run on a GPU, too; on the CPU this is always so");
  flags.Add("invalid_utf8", &o.invalid_utf8, "what happens to text that is not UTF-8")
      .Choices({"error", "replace"});
  AddHubFlags(flags, &o.hub);
  flags.Add("help", &o.help, "show this text");
  o.help_text = flags.Help();
  o.texts = flags.Parse(args);
  if (o.help) return o;
  if (o.texts.empty()) {
    throw InvalidArgument("MODEL_DIR is missing",
                          "usage: lathe predict MODEL_DIR [TEXT...] [options]");
  }
  o.mixed_precision = GivenPrecision(flags, o.mixed_precision, o.bf16, o.fp16).value_or("no");
  o.model_dir = o.texts.front();
  o.texts.erase(o.texts.begin());
  return o;
}

constexpr char kMixedFilesHint[] =
    "the files in the folder belong to different models; copy the model again";

std::shared_ptr<SequenceClassifier> LoadClassifier(const std::string& dir) {
  try {
    return AutoModelForSequenceClassification::FromPretrained(dir);
  } catch (const Error& e) {
    // Only a training program could let a parameter of another shape start fresh, so the
    // error's own hint would mislead here.
    if (e.detail<MismatchedSize>() == nullptr) throw;
    throw e.WithHint(kMixedFilesHint);
  }
}

class Predictor {
 public:
  explicit Predictor(const PredictOptions& options)
      : options_(options),
        model_(LoadClassifier(options.model_dir)),
        tokenizer_(AutoTokenizer::FromPretrained(options.model_dir)),
        names_(model_->config().label_names()),
        vocab_size_(model_->config().GetInt("vocab_size", tokenizer_->vocab_size())) {
    CheckVocabularySize(*tokenizer_, model_->config());
    model_->To(ChooseDevice(options.device));
    SetPrecision();
    model_->Eval();
    if (!model_->load_report().fresh_head.empty()) {
      throw InvalidArgument(options.model_dir + ": the model has no trained classifier (" +
                                model_->load_report().fresh_head.front() + " is missing)",
                            "train one with finetune");
    }
    if (!model_->load_report().missing.empty()) {
      throw InvalidArgument(options.model_dir + ": the checkpoint lacks " +
                                std::to_string(model_->load_report().missing.size()) +
                                " parameters, the first is " +
                                model_->load_report().missing.front(),
                            kMixedFilesHint);
    }
    kind_ = OutputKind(model_->config().problem_type(), model_->config().num_labels());
    CheckMaxSeqLength(*tokenizer_, options.pairs, options.max_seq_length);
    max_length_ = model_->max_length();
    for (const int64_t limit : {tokenizer_->model_max_length(), options.max_seq_length}) {
      if (limit > 0) max_length_ = std::min(max_length_, limit);
    }
  }

  void Add(const std::string& text, const std::string& where) {
    Encoding encoding = EncodeAt(where, *tokenizer_, text, options_.pairs, max_length_);
    for (const int32_t id : encoding.input_ids) {
      if (id < 0 || id >= vocab_size_) {
        throw InvalidArgument(where + ": token \"" + tokenizer_->IdToToken(id) + "\" has id " +
                                  std::to_string(id) + " but the model's vocab_size is " +
                                  std::to_string(vocab_size_),
                              kMixedFilesHint);
      }
    }
    where_.push_back(where);
    input_ids_.push_back(std::move(encoding.input_ids));
    token_type_ids_.push_back(std::move(encoding.token_type_ids));
  }

  int64_t num_pending() const { return static_cast<int64_t>(input_ids_.size()); }

  // Prints a line for each text that was added since the last call.
  void Flush() {
    if (input_ids_.empty()) return;
    NoGradGuard no_grad;
    const auto logits =
        model_->Forward(Batch::Pack(input_ids_, token_type_ids_)).logits.ToVector<float>();
    for (size_t i = 0; i < input_ids_.size(); ++i) {
      Print(std::span(logits).subspan(i * names_.size(), names_.size()), where_[i]);
    }
    input_ids_.clear();
    token_type_ids_.clear();
    where_.clear();
    if (!(std::cout << std::flush)) throw UnwrittenOutput();  // stop if nobody reads the answers
  }

 private:
  void SetPrecision() {
    const std::string& precision = options_.mixed_precision;
    if (precision == "fp16" && model_->device().is_cpu())
      throw InvalidArgument("--mixed_precision fp16 needs a GPU", "use bf16 or no");
    const std::string note = SlowPrecisionNote(precision, model_->device());
    if (!note.empty()) std::cerr << "note: " << note << '\n';
    if (precision == "bf16") model_->SetComputeDType(DType::kBF16);
    if (precision == "fp16") model_->SetComputeDType(DType::kF16);
  }

  void Print(std::span<const float> logits, const std::string& where) const {
    if (!std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); })) {
      throw InvalidArgument(where + ": the logits are not finite; the weights in " +
                                options_.model_dir + " are damaged",
                            "train the model again, at a lower learning rate");
    }
    const std::vector<double> scores = Scores(logits);
    const size_t best = static_cast<size_t>(ArgMax(logits, static_cast<int64_t>(logits.size()))[0]);
    nlohmann::ordered_json line = {{"label", names_[best]}, {"score", scores[best]}};
    if (options_.all_scores) {
      for (size_t c = 0; c < scores.size(); ++c) line["scores"][names_[c]] = scores[c];
    }
    std::cout << line.dump() << '\n';
  }

  // Returns probabilities; for a regression the value as it is.
  std::vector<double> Scores(std::span<const float> logits) const {
    std::vector<double> scores(logits.begin(), logits.end());
    if (kind_ == LabelKind::kRegression) return scores;
    if (kind_ == LabelKind::kMultiLabel) {
      for (double& score : scores) score = 1 / (1 + std::exp(-score));
      return scores;
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (double& score : scores) score /= sum;
    return scores;
  }

  const PredictOptions& options_;
  std::shared_ptr<SequenceClassifier> model_;
  std::shared_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> names_;
  int64_t vocab_size_;
  LabelKind kind_;
  int64_t max_length_;
  std::vector<std::vector<int32_t>> input_ids_, token_type_ids_;
  std::vector<std::string> where_;  // where each text came from
};

int Predict(const PredictOptions& options) {
  if (options.num_threads > 0) omp_set_num_threads(static_cast<int>(options.num_threads));
  if (options.deterministic) UseDeterministicGemms(true);
  std::ios::sync_with_stdio(false);  // lets in_avail tell what is buffered
  Predictor predictor(options);
  TextSource source(options.texts, options.invalid_utf8);
  try {
    while (const auto text = source.Next()) {
      predictor.Add(*text, source.Where());
      if (predictor.num_pending() == options.batch_size || source.WouldWait()) predictor.Flush();
    }
  } catch (const Error&) {
    predictor.Flush();  // answers the texts before the bad line
    throw;
  }
  predictor.Flush();
  return 0;
}

}  // namespace

int RunPredict(const std::vector<std::string>& args) {
  PredictOptions options;
  if (const auto code = ParseOrEnd(&options, ParsePredictOptions, args)) return *code;
  options.model_dir =
      ResolveCheckpoint(options.model_dir, {.config = true, .tokenizer = true, .weights = true},
                        options.hub)
          .folder;
  return Predict(options);
}

}  // namespace lathe
