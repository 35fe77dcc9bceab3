#include "lathe/train/card/model_card.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

ModelCardFacts Facts() {
  return {.model_name = "sst2",
          .base_model = "google-bert/bert-base-uncased",
          .training_data = "train.csv",
          .evaluation_data = "dev.csv",
          .hyperparameters = {{"learning_rate", 3e-5}, {"lr_scheduler_type", "linear"}},
          .log_history =
              {{{"eval_loss", 0.7},
                {"epoch", 0.5},
                {"step", 5},
                {"eval_accuracy", 0.5},
                {"eval_runtime", 1.0},
                {"eval_samples_per_second", 3.5}},
               {{"loss", 0.6931471}, {"epoch", 1.0}, {"step", 10}},
               {{"eval_loss", 0.25}, {"epoch", 1.0}, {"step", 10}, {"eval_accuracy", nullptr}},
               {{"train_loss", 0.5}, {"step", 10}, {"train_runtime", 2.0}}},
          .evaluation = {{"eval_loss", 0.123456},
                         {"eval_accuracy", 0.875},
                         {"eval_matthews_correlation", 1e-5},
                         {"eval_f1", nullptr},
                         {"eval_samples", 8},
                         {"epoch", 1.0}}};
}

// Returns the card without its comment.
std::string Visible(std::string card) {
  const size_t begin = card.find("\n<!--"), end = card.find("-->\n");
  return card.erase(begin, end + 4 - begin);
}

// It is long because it holds a whole card.
TEST(ModelCard, HasTheFormOfTrainers) {
  EXPECT_EQ(Visible(ModelCard(Facts())), R"(---
library_name: transformers
base_model: google-bert/bert-base-uncased
tags:
- generated_from_trainer
- lathe
metrics:
- accuracy
- matthews_correlation
model-index:
- name: sst2
  results:
  - task:
      name: Text Classification
      type: text-classification
    dataset:
      name: dev.csv
      type: csv
    metrics:
    - name: Accuracy
      type: accuracy
      value: 0.875
    - name: Matthews Correlation
      type: matthews_correlation
      value: 1.0e-05
---

# sst2

This model is a fine-tuned version of [google-bert/bert-base-uncased](https://huggingface.co/google-bert/bert-base-uncased) on `train.csv`.
It achieves the following results on the evaluation set:
- Loss: 0.1235
- Accuracy: 0.875
- F1: undefined
- Matthews Correlation: 1e-05

## Model description

This part is still to be written.

## Intended uses & limitations

This part is still to be written.

## Training and evaluation data

This part is still to be written.

## Training procedure

### Training hyperparameters

- learning_rate: 3e-05
- lr_scheduler_type: linear

### Training results

| Training Loss | Epoch | Step | Validation Loss | Accuracy  |
|:-------------:|:-----:|:----:|:---------------:|:---------:|
| No log        | 0.5   | 5    | 0.7             | 0.5       |
| 0.6931        | 1.0   | 10   | 0.25            | undefined |

### Framework versions

- Lathe 0.1.0
)");
}

TEST(ModelCard, LeavesOutWhatIsNotKnown) {
  const std::string card = ModelCard({.model_name = "out"});
  EXPECT_NE(card.find("model-index:\n- name: out\n  results: []\n---\n"), std::string::npos)
      << card;
  EXPECT_NE(card.find("trained from fresh weights on an unknown dataset.\n"), std::string::npos);
  for (const char* part : {"base_model", "metrics:", "achieves", "Training results"})
    EXPECT_EQ(card.find(part), std::string::npos) << part;
  EXPECT_TRUE(IsUneditedCard(card));
}

TEST(ModelCard, NamesALocalModelWithoutALink) {
  ModelCardFacts facts = Facts();
  facts.base_model = "my model";
  facts.base_is_local = true;
  const std::string card = ModelCard(facts);
  EXPECT_NE(card.find("a fine-tuned version of the local model `my model` on"), std::string::npos);
  EXPECT_EQ(card.find("base_model"), std::string::npos);
  EXPECT_EQ(card.find("huggingface.co"), std::string::npos);
}

TEST(ModelCard, QuotesNamesInItsFrontMatter) {
  ModelCardFacts facts = Facts();
  facts.model_name = "a: \"b\"\n<!-- digest c";
  facts.evaluation_data = "#1.tsv";
  facts.evaluation["eval_accuracy"] = std::nan("");
  const std::string card = ModelCard(facts);
  EXPECT_NE(card.find("\n- name: \"a: \\\"b\\\"\\n<!-- digest c\"\n"), std::string::npos) << card;
  EXPECT_NE(card.find("\n# a: \"b\" <!-- digest c\n"), std::string::npos) << card;
  EXPECT_NE(card.find("\n      name: \"#1.tsv\"\n      type: tsv\n"), std::string::npos) << card;
  EXPECT_NE(card.find("\n- Accuracy: undefined\n"), std::string::npos) << card;
  EXPECT_TRUE(IsUneditedCard(card));
}

TEST(ModelCard, KnowsEachEdit) {
  const std::string card = ModelCard(Facts());
  ASSERT_TRUE(IsUneditedCard(card));
  for (size_t i = 0; i < card.size(); i += 7) {
    std::string edited = card;
    edited[i] ^= 1;
    EXPECT_FALSE(IsUneditedCard(edited)) << i;
    EXPECT_FALSE(IsUneditedCard(card.substr(0, i))) << i;
  }
  EXPECT_FALSE(IsUneditedCard(card + "\n"));
  EXPECT_FALSE(IsUneditedCard(""));
  EXPECT_FALSE(IsUneditedCard("# A card of somebody else\n"));
  EXPECT_FALSE(IsUneditedCard("a\n<!-- digest 00"));
}

TEST(ModelCard, TellsWhoseTheFileIs) {
  const std::string dir = testing::TempDir() + "/card" + std::to_string(getpid());
  fs::create_directories(dir);
  const std::string path = dir + "/" + kModelCard;
  EXPECT_FALSE(HasUneditedCard(path));
  EXPECT_FALSE(HasForeignCard(path));
  WriteFileAtomically(path, ModelCard(Facts()));
  EXPECT_TRUE(HasUneditedCard(path));
  EXPECT_FALSE(HasForeignCard(path));
  WriteFileAtomically(path, ModelCard(Facts()) + "mine");
  EXPECT_FALSE(HasUneditedCard(path));
  EXPECT_TRUE(HasForeignCard(path));
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_TRUE(HasForeignCard(path));
  fs::remove(path);
  fs::create_symlink("nowhere", path);
  EXPECT_TRUE(HasForeignCard(path));
  fs::remove_all(dir);
}

}  // namespace
}  // namespace lathe
