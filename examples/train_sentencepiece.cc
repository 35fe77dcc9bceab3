#include "lathe/examples/train_sentencepiece.h"

#include <sentencepiece_trainer.h>

#include <stdexcept>
#include <unordered_map>

namespace lathe {
namespace {

class TextIterator : public sentencepiece::SentenceIterator {
 public:
  explicit TextIterator(const std::vector<std::string>& texts) : texts_(texts) {}
  bool done() const override { return next_ == texts_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return texts_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& texts_;
  size_t next_ = 0;
};

}  // namespace

std::string TrainSentencePiece(const std::vector<std::string>& texts, int vocab_size) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "unigram"},
      {"vocab_size", std::to_string(vocab_size)},
      {"normalization_rule_name", "nmt_nfkc_cf"},
      {"pad_id", "0"},
      {"unk_id", "1"},
      {"bos_id", "-1"},
      {"eos_id", "-1"},
      {"pad_piece", "<pad>"},
      {"unk_piece", "<unk>"},
      {"control_symbols", "[CLS],[SEP],[MASK]"},
      {"character_coverage", "0.9999"},
      {"hard_vocab_limit", "false"},
      // The number of threads decides how partial sums are added up, so it changes the result.
      {"num_threads", "2"},
      {"minloglevel", "2"},
  };
  TextIterator iterator(texts);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &iterator, &model);
  if (!status.ok()) throw std::runtime_error(status.ToString());
  return model;
}

}  // namespace lathe
