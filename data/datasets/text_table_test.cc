#include "lathe/data/datasets/text_table.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using Strings = std::vector<std::string>;

template <typename F>
Error Catch(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return InvalidArgument("");
}

// Expects parsing to fail with this message and a hint how to mend the file.
void ExpectError(const std::string& path, const std::string& contents, const std::string& message) {
  Error error = Catch([&] { ParseTextTable(path, contents); });
  EXPECT_EQ(error.message(), message);
  EXPECT_FALSE(error.hint().empty()) << message;
}

TEST(CsvTest, ReadsQuotedFieldsAndKeepsTrackOfLines) {
  TextTable table = ParseTextTable("a.csv",
                                   "\xEF\xBB\xBFsentence,label\r\n"
                                   "plain text,0\r\n"
                                   "\"a, b\",1\r\n"
                                   "\"she said \"\"no\"\"\",0\r\n"
                                   "\"two\nlines\r\nthree\",1\r\n"
                                   "\r\n"
                                   "inner \"quote\",0\n"
                                   "\"\",");
  EXPECT_EQ(table.names, (Strings{"sentence", "label"}));
  EXPECT_EQ(table.columns[0], (Strings{"plain text", "a, b", "she said \"no\"",
                                       "two\nlines\r\nthree", "inner \"quote\"", ""}));
  EXPECT_EQ(table.column("label"), (Strings{"0", "1", "0", "1", "0", ""}));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{2, 3, 4, 5, 9, 10}));
  EXPECT_EQ(table.Where(4), "a.csv:9");
}

TEST(CsvTest, AQuotedFieldMayEndTheFile) {
  for (const char* ending : {"", "\n", "\r\n", "\r"}) {
    TextTable table = ParseTextTable("a.csv", std::string("a,b\n1,\"x\"") + ending);
    EXPECT_EQ(table.column("b"), Strings{"x"});
  }
}

TEST(CsvTest, BadFilesAreReportedWithTheirLine) {
  ExpectError("t.csv", "a,b\n1,2\n1,2,3\n", "t.csv:3: expected 2 columns (a, b) but got 3");
  ExpectError("t.csv", "a,b\n\"x\ny\",2\n1\n", "t.csv:4: expected 2 columns (a, b) but got 1");
  ExpectError("t.csv", "a,b\n1,2\n\"x,2\n3,4\n", "t.csv:3: unterminated quote");
  ExpectError("t.csv", "a,b\n\"x\" y,2\n", "t.csv:2: text after a closing quote");
  ExpectError("t.csv", "a,b,a\n1,2,3\n", "t.csv:1: two columns are named \"a\"");
  ExpectError("t.csv", "", "t.csv: the file is empty");
  ExpectError("t.csv", "\n\n", "t.csv: the file is empty");
  ExpectError("t.csv", "\xEF\xBB\xBF", "t.csv: the file is empty");
  ExpectError("t.csv", "a,b\n", "t.csv: the file has a header but no rows");
}

TEST(TsvTest, QuotesMeanNothing) {
  TextTable table = ParseTextTable("dir.x/a.TSV", "s\tlabel\r\n\"open\t1\n\n5'11\" tall\t0");
  EXPECT_EQ(table.column("s"), (Strings{"\"open", "5'11\" tall"}));
  EXPECT_EQ(table.column("label"), (Strings{"1", "0"}));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{2, 4}));
  ExpectError("t.tsv", "a\tb\n1\t2\n1\n", "t.tsv:3: expected 2 columns (a, b) but got 1");
  ExpectError("t.tsv", "a\ta\n1\t2\n", "t.tsv:1: two columns are named \"a\"");
  ExpectError("t.tsv", "a\tb\n", "t.tsv: the file has a header but no rows");
}

TEST(JsonTest, ReadsOneObjectALine) {
  TextTable table = ParseTextTable("a.jsonl",
                                   "{\"text\": \"caf\\u00e9\\n\", \"label\": 1, \"ok\": true}\r\n"
                                   "\n"
                                   "{\"label\": 4.0, \"ok\": false, \"text\": \"\"}\n"
                                   "{\"text\": \"x\", \"label\": [\"b\", 2], \"ok\": -0.25}");
  EXPECT_EQ(table.names, (Strings{"text", "label", "ok"}));
  EXPECT_EQ(table.column("text"), (Strings{"caf\xC3\xA9\n", "", "x"}));
  EXPECT_EQ(table.column("label"), (Strings{"1", "4.0", "[\"b\",2]"}));
  EXPECT_EQ(table.column("ok"), (Strings{"true", "false", "-0.25"}));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{1, 3, 4}));
}

TEST(JsonTest, BadFilesAreReportedWithTheirLine) {
  const std::string first = "{\"a\": \"x\", \"b\": 1}\n";
  ExpectError("t.json", first + "{\"a\": \"x\", \"b\": \n", "t.json:2: broken JSON at byte 17");
  ExpectError("t.jsonl", "[\n" + first, "t.jsonl:1: broken JSON at byte 2");
  ExpectError("t.json", first + "{}" + '\0' + "\n", "t.json:2: the JSON has a NUL at byte 3");
  ExpectError("t.json", "\n{}\n" + first, "t.json:2: the object has no keys");
  ExpectError("t.json", first + "[1, 2]\n", "t.json:2: expected a JSON object but got array");
  ExpectError("t.json", first + "{\"a\": \"y\", \"b\": 1, \"a\": \"z\"}",
              "t.json:2: two columns are named \"a\"");
  ExpectError("t.json", first + "{\"a\": \"y\", \"b\": 1e999}\n",
              "t.json:2: a number is out of range");
  ExpectError("t.json", " \n", "t.json: the file is empty");
}

// pandas' to_json writes null for an empty cell, and a program may leave out a key.
TEST(JsonTest, OnlyColumnsThatAreUsedNeedATextInEachRow) {
  const TextTable table = ParseTextTable("t.jsonl",
                                         "{\"text\": \"x\", \"label\": 1, \"n\": null, \"o\": {}, "
                                         "\"gone\": 1, \"late\": \"a\"}\n"
                                         "{\"o\": {\"p\": 2}, \"n\": 1, \"text\": \"y\", \"late\": "
                                         "null, \"label\": 0, \"new\": {}}\n"
                                         "{\"text\": \"\", \"late\": {}, \"label\": 0}\n");
  EXPECT_EQ(table.column("text"), (Strings{"x", "y", ""}));
  EXPECT_EQ(table.column("label"), (Strings{"1", "0", "0"}));
  const std::pair<std::string, std::string> problems[] = {
      {"n", "t.jsonl:1: the value of \"n\" is null"},
      {"o", "t.jsonl:1: the value of \"o\" is an object"},
      {"gone", "t.jsonl:2: key \"gone\" is missing"},
      {"late", "t.jsonl:2: the value of \"late\" is null"},
      {"new", "t.jsonl:1: key \"new\" is missing"}};
  for (const auto& each : problems) {
    const std::string &name = each.first, &problem = each.second;
    EXPECT_TRUE(table.has(name));
    const Error error = Catch([&] { table.column(name); });
    EXPECT_EQ(error.message(), problem);
    EXPECT_FALSE(error.hint().empty());
    ASSERT_NE(error.detail<UnusableColumn>(), nullptr);
    EXPECT_EQ(error.detail<UnusableColumn>()->column, name);
    EXPECT_EQ(Catch([&] { ChooseTextColumns(table, {name}); }).message(), problem);
    EXPECT_EQ(Catch([&] { JoinedTexts(table, {.names = {"text", name}}); }).message(), problem);
  }
  EXPECT_EQ(ChooseTextColumns(table, {"text"}).first, "text");
  EXPECT_FALSE(table.has("none"));
  const TextTable array = ParseTextTable("t.json", "[{\"a\": 1},{\"b\": 1}]");
  EXPECT_EQ(Catch([&] { array.column("a"); }).message(),
            "t.json:1: element 2: key \"a\" is missing");
}

// A column is a text if its first value other than null is one.
TEST(JsonTest, TheChoiceOfTextsLooksAtAllKeys) {
  const auto choose = [](const std::string& rows) -> std::string {
    try {
      const TextColumns columns = ChooseTextColumns(ParseTextTable("t.jsonl", rows), {});
      return columns.first + "|" + columns.second;
    } catch (const Error& e) {
      return e.message();
    }
  };
  const std::string row = "{\"text\": \"x\", \"label\": 1}\n";
  EXPECT_EQ(choose("{\"text\": \"x\", \"label\": 1, \"meta\": {}}\n" + row), "text|");
  EXPECT_EQ(choose("{\"text\": \"x\", \"label\": 1, \"id\": null}\n" + row), "text|");
  EXPECT_EQ(choose("{\"text\": \"x\", \"label\": 1, \"meta\": null}\n" + row), "text|");
  EXPECT_EQ(choose("{\"meta\": null, \"text\": \"x\", \"label\": 1}\n" + row), "text|");
  EXPECT_EQ(choose("{\"tags\": [\"a\"], \"text\": \"x\", \"by\": 2, \"label\": 1}\n"), "text|by");
  EXPECT_EQ(choose("{\"tags\": [], \"text\": \"x\"}\n{\"tags\": \"a\", \"text\": \"x\"}\n"),
            "text|");
  const std::string late = "{\"text\": \"x\", \"label\": 1, \"more\": ";
  const std::string null = late + "null}\n";
  for (const char* value : {"[]", "{}", "[\"a\"]", "null"}) {
    EXPECT_EQ(choose(null + late + value + "}\n"), "text|") << value;
    EXPECT_EQ(choose(row + late + value + "}\n"), "text|") << value;  // the first row lacks the key
  }
  for (const char* value : {"\"y\"", "\"\"", "0", "false"}) {
    EXPECT_EQ(choose(null + null + late + value + "}\n"),
              "t.jsonl:1: the value of \"more\" is null but other rows have a text there");
    EXPECT_EQ(choose(late + value + "}\n" + null),
              "t.jsonl:2: the value of \"more\" is null but other rows have a text there");
  }
  EXPECT_EQ(choose("{\"sentence1\": \"x\", \"sentence2\": null, \"label\": 1}\n"), "sentence1|");
  EXPECT_EQ(choose("{\"label\": 1, \"text\": null}\n"), "t.jsonl:1: the value of \"text\" is null");
  EXPECT_EQ(choose("{\"label\": 1, \"text\": {}}\n"),
            "t.jsonl:1: the value of \"text\" is an object");
  EXPECT_EQ(choose("{\"label\": 1, \"text\": [\"x\"]}\n"),
            "t.jsonl:1: the value of \"text\" is an array but must be a text");
  EXPECT_EQ(choose("{\"text\": \"x\", \"label\": 1, \"note\": \"y\"}\n" + row),
            "t.jsonl:2: key \"note\" is missing but other rows have a text there");
  EXPECT_EQ(choose(row + "{\"text\": \"x\", \"label\": 1, \"note\": \"y\"}\n"),
            "t.jsonl:1: key \"note\" is missing but other rows have a text there");
  EXPECT_EQ(choose("{\"sentence1\": \"x\"}\n{\"sentence1\": \"x\", \"sentence2\": \"y\"}\n"),
            "t.jsonl:1: key \"sentence2\" is missing but other rows have a text there");
}

TEST(JsonArrayTest, ReadsOneArrayOfObjects) {
  TextTable table = ParseTextTable("a.json",
                                   "\n[\n {\"text\": \"a ] } \\\" [\", \"label\": [\"b\", 2]},\n"
                                   " {\n  \"label\": [],\n  \"text\": \"caf\\u00e9\"}\n]\n");
  EXPECT_EQ(table.names, (Strings{"text", "label"}));
  EXPECT_EQ(table.column("text"), (Strings{"a ] } \" [", "caf\xC3\xA9"}));
  EXPECT_EQ(table.column("label"), (Strings{"[\"b\",2]", "[]"}));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(table.first_array_lines, (std::vector<int64_t>{0, 3}));
}

// An array may be one line, so the number of its element tells a row.
TEST(JsonArrayTest, RowsHaveTheNumbersOfTheirElements) {
  const TextTable table =
      ParseTextTable("a.json", "[{\"a\": \"x\"}, {\"a\": \"y\"},\n{\"a\": \"z\"}]");
  EXPECT_EQ(table.lines, (std::vector<int64_t>{1, 1, 2}));
  EXPECT_EQ(table.elements, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(table.Where(1), "a.json:1: element 2");
  EXPECT_EQ(table.Where(2), "a.json:2: element 3");
  const TextTable lines = ParseTextTable("a.json", "{\"a\": \"x\"}\n{\"a\": \"y\"}\n");
  EXPECT_TRUE(lines.elements.empty());
  EXPECT_EQ(lines.element(1), 0);
  EXPECT_EQ(lines.Where(1), "a.json:2");
}

TEST(JsonArrayTest, BadArraysAreReportedWithTheirLine) {
  const std::string first = "[{\"a\": \"x\", \"b\": 1}";
  ExpectError("t.json", first, "t.json:1: the array has no end");
  ExpectError("t.json", first + ",\n{\"a\": \"x\"", "t.json:2: the object has no end");
  ExpectError("t.json", first + ",\n]", "t.json:2: expected an object of the array but got \"]\"");
  ExpectError("t.json", first + "\n{}",
              "t.json:2: expected a comma or the array's end but got \"{\"");
  ExpectError("t.json", first + "]\n,",
              "t.json:2: expected nothing behind the array but got \",\"");
  ExpectError("t.json", first + ",[]]", "t.json:1: expected an object of the array but got \"[\"");
  ExpectError("t.json", first + ",\n{\"a\": 1,\n \"b\": x}]", "t.json:3: broken JSON at byte 7");
  ExpectError("t.json", "[]", "t.json: the file is empty");
  ExpectError("t.json",
              first + ",\n{\"a\": " + std::string(300, '[') + std::string(300, ']') + "}]",
              "t.json:2: the JSON is nested more than 200 levels deep");
}

TEST(Utf8Test, InvalidBytesAreReportedOrReplaced) {
  const std::string contents = "text,label\ngood,0\ncaf\xE9,1\n";
  ExpectError("t.csv", contents, "t.csv:3: invalid UTF-8");
  ExpectError("t.csv", std::string("\xFF\xFE", 2) + "t", "t.csv:1: invalid UTF-8");  // UTF-16
  EXPECT_NE(Catch([&] { ParseTextTable("t.csv", contents); }).detail<FoundInvalidUtf8>(), nullptr);
  TextTable table = ParseTextTable("t.csv", contents, InvalidUtf8::kReplace);
  EXPECT_EQ(table.column("text"), (Strings{"good", "caf\xEF\xBF\xBD"}));
}

TEST(FileTest, UnusableFiles) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("text_table_" + std::to_string(getpid()));
  std::filesystem::create_directories(dir / "folder.csv");
  const std::string missing = (dir / "missing.csv").string();
  Error error = Catch([&] { ReadTextTable(missing); });
  EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(error.message(), missing + ": No such file or directory");

  error = Catch([&] { ReadTextTable((dir / "folder.csv").string()); });
  EXPECT_EQ(error.message(), (dir / "folder.csv").string() + ": is a folder");
  error = Catch([&] { ReadTextTable(dir.string()); });
  EXPECT_EQ(error.message(), dir.string() + ": is a folder");

  error = Catch([&] { ReadTextTable("train.txt"); });
  EXPECT_EQ(error.message(), "train.txt: unknown file extension \".txt\"");
  EXPECT_FALSE(error.hint().empty());
  error = Catch([&] { ReadTextTable("train"); });
  EXPECT_EQ(error.message(), "train: unknown file extension \"\"");

  const std::string good = (dir / "good.csv").string();
  std::ofstream(good) << "a,b\n1,2\n";
  EXPECT_EQ(ReadTextTable(good).column("b"), Strings{"2"});
  if (geteuid() != 0) {  // root may read everything
    std::filesystem::permissions(good, std::filesystem::perms::none);
    error = Catch([&] { ReadTextTable(good); });
    EXPECT_EQ(error.message(), good + ": Permission denied");
  }
  std::filesystem::remove_all(dir);
}

TextTable TableWith(const std::string& header) {
  std::string row(std::count(header.begin(), header.end(), ','), ',');
  return ParseTextTable("t.csv", header + "\n" + row + "x\n");
}

TEST(ColumnsTest, AreChosenAsRunGlueDoes) {
  auto choose = [](const std::string& header, const Strings& named = {},
                   const std::string& label = "label") {
    TextColumns c = ChooseTextColumns(TableWith(header), named, label);
    return c.first + "|" + c.second;
  };
  EXPECT_EQ(choose("label,other,sentence2,sentence1"), "sentence1|sentence2");
  EXPECT_EQ(choose("idx,question,label,passage,extra"), "question|passage");
  EXPECT_EQ(choose("label,sentence"), "sentence|");
  EXPECT_EQ(choose(",sentence,label"), "sentence|");
  EXPECT_EQ(choose("a,stars,b", {}, "stars"), "a|b");
  EXPECT_EQ(choose("sentence1,sentence2,title,label", {"title"}), "title|");
  EXPECT_EQ(choose("a,b,label", {"b", "a"}), "b|a");
  EXPECT_EQ(choose("text,label,prediction,probability,probability_x"), "text|");
  EXPECT_EQ(choose("prediction,text"), "prediction|text");
}

TEST(ColumnsTest, AMissingColumnListsThoseThereAre) {
  TextTable table = TableWith("text,label");
  for (auto& error : {Catch([&] { ChooseTextColumns(table, {"sentence"}); }),
                      Catch([&] { table.column("sentence"); })}) {
    EXPECT_EQ(error.message(), "t.csv: no column \"sentence\"; it has: text, label");
    EXPECT_FALSE(error.hint().empty());
    ASSERT_NE(error.detail<MissingColumn>(), nullptr);
    EXPECT_EQ(error.detail<MissingColumn>()->column, "sentence");
  }
  EXPECT_EQ(Catch([&] { ChooseTextColumns(TableWith("label,idx"), {}); }).message(),
            "t.csv: no text column; it has: label, idx");
  EXPECT_EQ(Catch([&] {
              ChooseTextColumns(table, {"a", "b", "c"});
            }).message(),
            "t.csv: expected one or two text columns but got 3: a, b, c");
}

TEST(ColumnsTest, ArraysAreNoTexts) {
  const TextTable table = ParseTextTable("t.jsonl",
                                         "{\"text\": \"a\", \"label\": [\"x\"]}\n"
                                         "{\"text\": [\"b\", \"c\"], \"label\": []}\n");
  try {
    ChooseTextColumns(table, {});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "t.jsonl:2: the value of \"text\" is an array but must be a text");
  }
}

TEST(ColumnsTest, AreJoinedInTheOrderOfTheirNames) {
  const TextTable file = ParseTextTable("t.csv", "title,body,label\nA,b c,1\n,\"d\ne\",0\n");
  TextTable table = file;
  const JoinedColumns columns{.names = {"body", "title", "label"}, .delimiter = "\\n"};
  EXPECT_EQ(JoinedTexts(table, columns), (Strings{"b c\\nA\\n1", "d\ne\\n\\n0"}));
  JoinColumns(table, columns);
  EXPECT_EQ(table.names, (Strings{"body + title + label", "title", "body", "label"}));
  EXPECT_EQ(table.column(columns.Name()), JoinedTexts(file, columns));
  EXPECT_EQ(table.column("title"), file.column("title"));
  EXPECT_EQ(ChooseTextColumns(table, {columns.Name()}).first, columns.Name());
  // One column, or none, is no work.
  table = file;
  JoinColumns(table, {.names = {"body"}});
  JoinColumns(table, {});
  EXPECT_EQ(table.names, file.names);
  EXPECT_EQ(JoinedTexts(table, {.names = {"title", "body"}}), (Strings{"A b c", " d\ne"}));
}

TEST(ColumnsTest, ColumnsThatCannotBeJoinedAreNamed) {
  TextTable table = ParseTextTable("t.jsonl",
                                   "{\"a\": \"x\", \"b\": 7, \"c\": []}\n"
                                   "{\"a\": \"y\", \"b\": true, \"c\": [1]}\n");
  EXPECT_EQ(JoinedTexts(table, {.names = {"a", "b"}}), (Strings{"x 7", "y true"}));
  EXPECT_EQ(Catch([&] {
              JoinColumns(table, {.names = {"a", "d"}});
            }).message(),
            "t.jsonl: no column \"d\"; it has: a, b, c");
  EXPECT_EQ(Catch([&] {
              JoinColumns(table, {.names = {"a", "c"}});
            }).message(),
            "t.jsonl:1: the value of \"c\" is an array but must be a text");
  JoinColumns(table, {.names = {"a", "b"}});
  EXPECT_EQ(Catch([&] { ChooseTextColumns(table, {"c"}); }).message(),
            "t.jsonl:1: the value of \"c\" is an array but must be a text");
}

TEST(JsonLinesTest, EndlessNestingIsAnError) {
  const std::string deep = std::string(50000, '[') + std::string(50000, ']');
  EXPECT_THROW(ParseTextTable("t.jsonl", "{\"text\": " + deep + "}\n"), Error);
}

}  // namespace
}  // namespace lathe
