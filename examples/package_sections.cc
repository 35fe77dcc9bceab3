// Makes a text classification task of what every Debian machine knows. The texts are a package's
// name and one-line description, and the label is its section.
//
//   apt-cache dumpavail | package_sections DIR
//
// Writes DIR/train.tsv and DIR/dev.tsv (columns name, description, section) and DIR/model. The
// model folder holds a tokenizer with a SentencePiece vocabulary of the training part. It also
// holds the configuration of a small BERT to train from fresh weights. DIR/model/config.json is
// written last: if it exists, everything else does. The same package lists give the same files.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/data/utf8.h"
#include "lathe/examples/train_sentencepiece.h"
#include "lathe/models/config/config.h"

namespace lathe {
namespace {

constexpr int kVocabSize = 12000;
constexpr int64_t kMaxLength = 64;
constexpr size_t kFewestSamples = 1000;

struct Package {
  std::string name, description, section;
};

// "non-free/text" and "contrib/text" are the section "text" of another part of the archive.
std::string BareSection(const std::string& section) {
  return section.substr(section.rfind('/') + 1);
}

bool IsUsable(const Package& package) {
  for (const std::string* field : {&package.name, &package.description, &package.section}) {
    if (field->empty() || field->find_first_of("\t\r") != std::string::npos ||
        ValidateUtf8(*field) != std::string_view::npos) {
      return false;
    }
  }
  return true;
}

// Reads the paragraphs of `in`, one for each package, in their order. A description that was seen
// before is left out. The many parts of a library have the same one, and the same text must not be
// in both files.
std::vector<Package> ReadPackages(std::istream& in) {
  std::vector<Package> packages;
  std::unordered_set<std::string> seen;
  Package package;
  const auto finish = [&] {
    package.section = BareSection(package.section);
    if (IsUsable(package) && seen.insert(package.description).second) packages.push_back(package);
    package = {};
  };
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) {
      finish();
    } else if (line.starts_with("Package: ")) {
      package.name = line.substr(9);
    } else if (line.starts_with("Section: ")) {
      package.section = line.substr(9);
    } else if (line.starts_with("Description: ")) {
      package.description = line.substr(13);
    }
  }
  finish();
  return packages;
}

// Returns the FNV-1a hash of 64 bits.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

bool IsForEvaluation(const Package& package) {
  return Hash(package.name + '\t' + package.description) % 10 == 0;
}

void WriteTable(const std::string& path, const std::vector<Package>& packages) {
  std::string table = "name\tdescription\tsection\n";
  for (const Package& p : packages) {
    table += p.name + '\t' + p.description + '\t' + p.section + '\n';
  }
  WriteFileAtomically(path, table);
}

int64_t WriteModel(const std::string& dir, const std::vector<Package>& packages) {
  std::vector<std::string> texts;
  for (const Package& p : packages) {
    texts.push_back(p.name);
    texts.push_back(p.description);
  }
  const std::string spm_file = dir + "/spiece.model";
  WriteFileAtomically(spm_file, TrainSentencePiece(texts, kVocabSize));
  const auto tokenizer = AlbertTokenizerFromSentencePiece(spm_file, /*do_lower_case=*/true,
                                                          /*keep_accents=*/false, kMaxLength);
  tokenizer->SavePretrained(dir);
  PretrainedConfig::FromJson({{"model_type", "bert"},
                              {"architectures", {"BertForSequenceClassification"}},
                              {"vocab_size", tokenizer->vocab_size()},
                              {"pad_token_id", tokenizer->pad_token_id()},
                              {"hidden_size", 192},
                              {"num_hidden_layers", 2},
                              {"num_attention_heads", 3},
                              {"intermediate_size", 768},
                              {"hidden_act", "gelu"},
                              {"hidden_dropout_prob", 0.2},
                              {"attention_probs_dropout_prob", 0.1},
                              {"initializer_range", 0.05},
                              {"layer_norm_eps", 1e-12},
                              {"max_position_embeddings", kMaxLength},
                              {"type_vocab_size", 2}})
      .SavePretrained(dir);
  return tokenizer->vocab_size();
}

void MakeTask(const std::string& dir) {
  std::vector<Package> train, dev;
  std::set<std::string> train_sections;
  for (Package& package : ReadPackages(std::cin)) {
    if (IsForEvaluation(package)) {
      dev.push_back(std::move(package));
    } else {
      train_sections.insert(package.section);
      train.push_back(std::move(package));
    }
  }
  if (train.size() < kFewestSamples) {
    throw InvalidArgument("standard input: " + std::to_string(train.size()) +
                              " usable packages, but " + std::to_string(kFewestSamples) +
                              " are needed",
                          "run apt-get update, then apt-cache dumpavail | package_sections DIR");
  }
  // A section's only package may be in `dev`. A classifier can't know such a label.
  std::erase_if(dev, [&](const Package& p) { return !train_sections.contains(p.section); });

  const std::string model_dir = dir + "/model";
  std::error_code code;
  std::filesystem::create_directories(model_dir, code);
  if (code) throw FileError(model_dir, code.value());
  WriteTable(dir + "/train.tsv", train);
  WriteTable(dir + "/dev.tsv", dev);
  const int64_t vocab_size = WriteModel(model_dir, train);
  std::cout << train.size() << " packages to train on, " << dev.size() << " to evaluate with, "
            << train_sections.size() << " sections, " << vocab_size << " word pieces\n";
  if (!std::cout.flush()) {
    throw InvalidArgument("standard output: cannot be written",
                          "is the disk full, or has its reader ended?");
  }
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    std::cerr << "usage: apt-cache dumpavail | package_sections DIR\n";
    return 2;
  }
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  try {
    lathe::MakeTask(argv[1]);
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << '\n';
    return 1;
  }
  return 0;
}
