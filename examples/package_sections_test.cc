// Runs package_sections on package lists that are made here.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {
namespace {

constexpr const char* kProgram = "examples/package_sections";
constexpr int kPackages = 1500;
constexpr const char* kSections[] = {"libs", "games", "contrib/net", "non-free/text", "doc"};

std::string Stanza(const std::string& name, const std::string& section,
                   const std::string& description) {
  return "Package: " + name + "\nVersion: 1.0-1\nSection: " + section +
         "\nPriority: optional\nDescription: " + description +
         "\n A continuation line with more.\n Section: not-this-one\n .\n" +
         "Description-md5: d41d8cd98f00b204e9800998ecf8427e\n\n";
}

// Makes packages with different descriptions, by a fixed generator.
std::vector<std::string> MakeStanzas() {
  const std::vector<std::string> words = {"fast", "library", "für", "web",  "tools",  "game",
                                          "with", "Größen",  "of",  "perl", "日本語", "files"};
  uint32_t state = 1;
  std::vector<std::string> stanzas;
  for (int i = 0; i < kPackages; ++i) {
    std::string description;
    for (int w = 0; w < 5; ++w) {
      state = state * 1664525u + 1013904223u;
      description += words[state / 65536u % words.size()] + " ";
    }
    stanzas.push_back(Stanza("package-" + std::to_string(i), kSections[i % 5],
                             description + "number " + std::to_string(i)));
  }
  return stanzas;
}

std::string Join(const std::vector<std::string>& stanzas) {
  std::string all;
  for (const std::string& stanza : stanzas) all += stanza;
  return all;
}

class PackageSectionsTest : public CliTest {
 protected:
  using Row = std::vector<std::string>;

  void Make(const std::string& dir, const std::vector<std::string>& stanzas) const {
    const RunResult run = RunProgram(kProgram, {Path(dir)}, {.input = Join(stanzas)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
  }

  // Returns the rows below the header, in order.
  std::vector<Row> Rows(const std::string& name) const {
    std::istringstream table(Read(name));
    std::string line;
    std::getline(table, line);
    EXPECT_EQ(line, "name\tdescription\tsection");
    std::vector<Row> rows;
    while (std::getline(table, line)) {
      Row& row = rows.emplace_back();
      std::istringstream columns(line);
      for (std::string column; std::getline(columns, column, '\t');) row.push_back(column);
      EXPECT_EQ(row.size(), 3u) << line;
    }
    return rows;
  }

  std::set<Row> RowSet(const std::string& name) const {
    const std::vector<Row> rows = Rows(name);
    return {rows.begin(), rows.end()};
  }
};

TEST_F(PackageSectionsTest, SplitsAllPackages) {
  Make("data", MakeStanzas());
  const std::vector<Row> train = Rows("data/train.tsv"), dev = Rows("data/dev.tsv");
  EXPECT_GT(dev.size(), kPackages / 20u);
  EXPECT_LT(dev.size(), kPackages / 5u);

  std::map<std::string, std::string> section_of;
  for (const auto* rows : {&train, &dev}) {
    for (const Row& row : *rows) {
      EXPECT_TRUE(section_of.emplace(row[0], row[2]).second) << row[0] << " is there twice";
    }
  }
  ASSERT_EQ(section_of.size(), size_t{kPackages});
  const char* bare[] = {"libs", "games", "net", "text", "doc"};
  for (int i = 0; i < kPackages; ++i) {
    EXPECT_EQ(section_of["package-" + std::to_string(i)], bare[i % 5]) << i;
  }
}

TEST_F(PackageSectionsTest, ThePartDependsOnThePackageAlone) {
  std::vector<std::string> stanzas = MakeStanzas();
  Make("data", stanzas);
  std::reverse(stanzas.begin(), stanzas.end());
  stanzas.insert(stanzas.begin(), Stanza("new", "libs", "A package that came later"));
  Make("later", stanzas);

  std::set<Row> train = RowSet("data/train.tsv"), dev = RowSet("data/dev.tsv");
  const Row added = {"new", "A package that came later", "libs"};
  (RowSet("later/dev.tsv").contains(added) ? dev : train).insert(added);
  EXPECT_EQ(RowSet("later/train.tsv"), train);
  EXPECT_EQ(RowSet("later/dev.tsv"), dev);
}

TEST_F(PackageSectionsTest, TheSameListsGiveTheSameFiles) {
  Make("a", MakeStanzas());
  Make("b", MakeStanzas());
  for (const char* name : {"train.tsv", "dev.tsv", "model/config.json", "model/spiece.model",
                           "model/tokenizer.json", "model/tokenizer_config.json"}) {
    EXPECT_EQ(Read("a/" + std::string(name)), Read("b/" + std::string(name))) << name;
  }
}

TEST_F(PackageSectionsTest, LeavesOutWhatCannotBeUsed) {
  const std::vector<std::string> good = MakeStanzas();
  Make("data", good);
  std::vector<std::string> stanzas = good;
  stanzas.insert(
      stanzas.begin() + 700,
      {"Package: no-section\nDescription: Has no section\n\n",
       "Package: no-description\nSection: libs\n\n", "Section: libs\nDescription: Has no name\n\n",
       "Package: empty-description\nSection: libs\nDescription: \n\n",
       Stanza("empty-section", "contrib/", "Has an empty section"), "\n\n",
       Stanza("tab", "libs", "A tab\tin the text"),
       Stanza("return", "libs", "A return\rin the text"),
       Stanza("latin1", "libs",
              "Gr\xf6\xdf"
              "e of an old encoding")});
  stanzas.push_back(good[3]);  // another version of the same package
  // Another part of a library, with the same description.
  const std::string description = Rows("data/train.tsv")[5][1];
  stanzas.push_back(Stanza("other", "doc", description));
  Make("more", stanzas);
  EXPECT_EQ(Read("more/train.tsv"), Read("data/train.tsv"));
  EXPECT_EQ(Read("more/dev.tsv"), Read("data/dev.tsv"));
}

TEST_F(PackageSectionsTest, NoSectionIsOnlyInEvaluation) {
  std::vector<std::string> stanzas = MakeStanzas();
  Make("data", stanzas);
  const Row row = Rows("data/dev.tsv")[0];
  const auto stanza = std::find_if(stanzas.begin(), stanzas.end(), [&](const std::string& text) {
    return text.starts_with("Package: " + row[0] + "\n");
  });
  ASSERT_NE(stanza, stanzas.end());
  *stanza = Stanza(row[0], "lonely", row[1]);
  Make("lonely", stanzas);
  EXPECT_EQ(Rows("lonely/dev.tsv").size() + 1, Rows("data/dev.tsv").size());
  for (const char* name : {"lonely/train.tsv", "lonely/dev.tsv"}) {
    EXPECT_EQ(Read(name).find("lonely"), std::string::npos) << name;
  }
}

TEST_F(PackageSectionsTest, TheModelLoads) {
  Make("data", MakeStanzas());
  const nlohmann::json config = ReadJson("data/model/config.json");
  const auto tokenizer = LoadTokenizer(Path("data/model"), config["model_type"]);
  EXPECT_EQ(tokenizer->vocab_size(), config["vocab_size"]);
  EXPECT_EQ(tokenizer->pad_token_id(), config["pad_token_id"]);
  EXPECT_EQ(tokenizer->model_max_length(), config["max_position_embeddings"]);

  const Encoding encoding = tokenizer->Encode("package-7", "Größen of web tools");
  std::string text;
  for (const int32_t id : encoding.input_ids) text += tokenizer->IdToToken(id);
  // The text is in lower case and without accents, as ALBERT's tokenizer makes it.
  EXPECT_EQ(text, "[CLS]▁package-7[SEP]▁großen▁of▁web▁tools[SEP]");
  ASSERT_EQ(encoding.token_type_ids.size(), encoding.input_ids.size());
  EXPECT_EQ(encoding.token_type_ids.back(), 1);

  // A model can be trained with the tokenizer.
  const RunResult run = RunProgram("finetune", {"--config_name",     Path("data/model"),
                                                "--tokenizer_name",  Path("data/model"),
                                                "--train_file",      Path("data/train.tsv"),
                                                "--validation_file", Path("data/dev.tsv"),
                                                "--text_columns",    "name,description",
                                                "--label_column",    "section",
                                                "--do_train",        "--do_eval",
                                                "--max_steps",       "2",
                                                "--num_threads",     "1",
                                                "--output_dir",      Path("out")});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ReadJson("out/config.json")["id2label"].size(), std::size(kSections));
}

TEST_F(PackageSectionsTest, Errors) {
  for (const char* arg : {"--help", ""}) {
    const std::vector<std::string> args =
        *arg ? std::vector<std::string>{arg} : std::vector<std::string>{};
    const RunResult run = RunProgram(kProgram, args);
    EXPECT_EQ(run.exit_code, 2) << arg;
    EXPECT_EQ(run.err, "usage: apt-cache dumpavail | package_sections DIR\n");
  }

  const RunResult empty = RunProgram(kProgram, {Path("none")});
  ExpectError(empty, "standard input: 0 usable packages, but 1000 are needed");
  EXPECT_NE(empty.err.find("hint: run apt-get update"), std::string::npos) << empty.err;
  EXPECT_FALSE(Exists("none"));

  const std::string input = Join(MakeStanzas());
  ExpectError(RunProgram(kProgram, {Path("train.csv")}, {.input = input}),
              Path("train.csv") + "/model: Not a directory");

  // If the disk is full once the tables are written, nothing passes for a complete model.
  const RunResult full =
      RunProgram(kProgram, {Path("full")}, {.input = input, .max_file_bytes = 100'000});
  ExpectError(full, "full/");
  EXPECT_TRUE(Exists("full/train.tsv"));
  EXPECT_FALSE(Exists("full/model/config.json"));
}

}  // namespace
}  // namespace lathe
