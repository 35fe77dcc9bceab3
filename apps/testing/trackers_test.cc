// Tests what `finetune` reports to trackers and on model cards.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// --- a reader of event files that knows nothing of their writer ---

// The checksum bit by bit, with the polynomial as RFC 3720 has it.
uint32_t SlowCrc32c(const std::string& bytes) {
  uint64_t rest = 0xFFFFFFFF;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const uint64_t next = (static_cast<unsigned char>(c) >> bit) & 1;
      rest = ((rest >> 31) ^ next) != 0 ? ((rest << 1) ^ 0x1EDC6F41) & 0xFFFFFFFF
                                        : (rest << 1) & 0xFFFFFFFF;
    }
  }
  uint32_t reversed = 0;
  for (int bit = 0; bit < 32; ++bit)
    reversed |= static_cast<uint32_t>(rest >> bit & 1) << (31 - bit);
  return ~reversed;
}

uint32_t Masked(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8; }

template <typename T>
T Number(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The fields of a message: numbers as their bytes, texts and messages as they are.
using Fields = std::multimap<int, std::string>;

Fields Decode(const std::string& message) {
  Fields fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    std::string value;
    if ((key & 7) == 0) {
      const uint64_t number = varint();
      value.assign(reinterpret_cast<const char*>(&number), sizeof number);
    } else {
      const size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
      value = message.substr(at, size);
      EXPECT_EQ(value.size(), size);
      at += size;
    }
    fields.emplace(static_cast<int>(key >> 3), value);
  }
  return fields;
}

const std::string& One(const Fields& fields, int field) {
  EXPECT_EQ(fields.count(field), 1u) << "field " << field;
  return fields.find(field)->second;
}

struct Events {
  std::map<std::string, std::map<int64_t, float>> scalars;  // by tag and step
  std::map<std::string, std::string> texts;
  std::map<std::string, int> others;  // how often a tag occurs that is neither
};

void AddSummary(const Fields& event, Events& events) {
  const int64_t step = event.contains(2) ? Number<int64_t>(One(event, 2), 0) : 0;
  const Fields summary = Decode(One(event, 5));
  for (auto [value, end] = summary.equal_range(1); value != end; ++value) {
    const Fields parts = Decode(value->second);
    const std::string& tag = One(parts, 1);
    if (parts.contains(2)) {
      const float number = Number<float>(One(parts, 2), 0);
      // The epoch comes with each entry, and a step may have several.
      EXPECT_EQ(events.scalars[tag].emplace(step, number).first->second, number) << tag;
    } else if (tag.ends_with("/text_summary")) {
      events.texts[tag] = One(Decode(One(parts, 8)), 8);
    } else {
      ++events.others[tag];
    }
  }
}

// Reads all records and checks that each is whole.
Events ReadEvents(const std::string& bytes) {
  Events events;
  for (size_t at = 0; at < bytes.size();) {
    const std::string head = bytes.substr(at, 8);
    const auto size = Number<uint64_t>(head, 0);
    EXPECT_EQ(Number<uint32_t>(bytes, at + 8), Masked(SlowCrc32c(head)));
    const std::string event = bytes.substr(at + 12, size);
    EXPECT_EQ(Number<uint32_t>(bytes, at + 12 + size), Masked(SlowCrc32c(event)));
    const Fields fields = Decode(event);
    EXPECT_GT(Number<double>(One(fields, 1), 0), 1.7e9);
    if (at == 0) {
      EXPECT_EQ(One(fields, 3), "brain.Event:2");
    } else {
      AddSummary(fields, events);
    }
    at += 16 + size;
  }
  return events;
}

class TrackersTest : public LaunchedTest {
 protected:
  // Returns the contents of the event files in the folder, oldest first.
  std::vector<Events> EventFiles(const std::string& folder) const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(Path(folder))) {
      if (entry.path().filename().string().starts_with("events.out.tfevents."))
        paths.push_back(folder + "/" + entry.path().filename().string());
    }
    std::sort(paths.begin(), paths.end(), [&](const std::string& a, const std::string& b) {
      return fs::last_write_time(Path(a)) < fs::last_write_time(Path(b));
    });
    std::vector<Events> files;
    for (const std::string& path : paths) files.push_back(ReadEvents(Read(path)));
    return files;
  }
  std::vector<Json> JsonLines(const std::string& name) const {
    std::vector<Json> lines;
    std::istringstream in(Read(name));
    for (std::string line; std::getline(in, line);) lines.push_back(ParseJson(line));
    return lines;
  }
  // Returns the tags and values that an entry of trainer_state.json becomes.
  static std::map<std::string, float> Tagged(const Json& entry) {
    std::map<std::string, float> values;
    for (const auto& [name, value] : entry.items()) {
      if (name != "step")
        values[name.starts_with("eval_") ? "eval/" + name.substr(5) : "train/" + name] =
            value.get<float>();
    }
    return values;
  }
};

size_t Occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(TrackersTest, GetWhatTheTrainerLogsUnderTransformersNames) {
  const std::vector<std::string> options = {
      "--max_steps", "6",         "--eval_strategy", "steps", "--eval_steps",
      "3",           "--do_eval", "--seed",          "7"};
  std::vector<std::string> tracked = options;
  tracked.insert(tracked.end(), {"--report_to", "tensorboard", "jsonl", "--logging_dir",
                                 Path("logs/run"), "--output_dir", Path("tracked")});
  const RunResult plain = Train(options), run = Train(tracked);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_FALSE(Exists("out/runs"));
  EXPECT_FALSE(Exists("tracked/runs"));
  EXPECT_EQ(Read("out/model.safetensors"), Read("tracked/model.safetensors"));

  // The second file has the evaluation after the training.
  const std::vector<Events> files = EventFiles("logs/run");
  ASSERT_EQ(files.size(), 2u);
  const Json log = ReadJson("tracked/trainer_state.json").at("log_history");
  EXPECT_EQ(log.size(), 9u);  // six steps, two evaluations, one summary
  std::map<std::string, std::map<int64_t, float>> expected;
  for (const Json& entry : log) {
    for (const auto& [tag, value] : Tagged(entry)) expected[tag].emplace(entry.at("step"), value);
  }
  EXPECT_EQ(expected.at("train/loss").size(), 6u);
  EXPECT_EQ(expected.at("eval/accuracy").size(), 2u);
  EXPECT_EQ(files[0].scalars, expected);
  EXPECT_EQ(ParseJson(files[0].texts.at("args/text_summary")).at("seed"), 7);
  EXPECT_EQ(ParseJson(files[0].texts.at("args/text_summary")).at("learning_rate"), 0.01);
  EXPECT_FALSE(ParseJson(files[0].texts.at("args/text_summary")).contains("token"));
  EXPECT_EQ(ParseJson(files[0].texts.at("model_config/text_summary")).at("model_type"), "bert");
  EXPECT_EQ(files[0].others, (std::map<std::string, int>{{"_hparams_/session_start_info", 1},
                                                         {"_hparams_/session_end_info", 1}}));
  const float accuracy = ReadJson("tracked/eval_results.json").at("eval_accuracy");
  EXPECT_EQ(files[1].scalars.at("eval/accuracy"), (std::map<int64_t, float>{{6, accuracy}}));

  const std::vector<Json> lines = JsonLines("logs/run/metrics.jsonl");
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_EQ(lines[0].at("hyperparameters").at("seed"), 7);
  for (size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(lines[i + 1].at("step"), log[i].at("step"));
    EXPECT_EQ(lines[i + 1].at("epoch"), log[i].at("epoch"));
    for (const auto& [key, tag] :
         {std::pair("loss", "train/loss"), std::pair("eval_f1", "eval/f1")})
      EXPECT_EQ(lines[i + 1].value(tag, Json()), log[i].value(key, Json())) << key;
  }
  EXPECT_EQ(lines[10].at("eval/loss"), ReadJson("tracked/eval_results.json").at("eval_loss"));
}

TEST_F(TrackersTest, AResumeGoesOnInANewFile) {
  const std::vector<std::string> options = {
      "--max_steps", "8",   "--save_strategy", "steps",     "--save_steps", "5",
      "--report_to", "all", "--logging_dir",   Path("logs")};
  ASSERT_EQ(Train(options).exit_code, 0);
  std::vector<std::string> resumed = options;
  resumed.insert(resumed.end(), {"--resume_from_checkpoint", Path("out/checkpoint-5")});
  const RunResult run = Train(resumed);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::vector<Events> files = EventFiles("logs");
  ASSERT_EQ(files.size(), 2u);
  const std::map<int64_t, float>&first = files[0].scalars.at("train/loss"),
                          &second = files[1].scalars.at("train/loss");
  EXPECT_EQ(first.begin()->first, 1);
  EXPECT_EQ(first.rbegin()->first, 8);
  EXPECT_EQ(second.begin()->first, 6);
  EXPECT_EQ(second.rbegin()->first, 8);
  EXPECT_EQ(first.at(7), second.at(7));
  EXPECT_EQ(JsonLines("logs/metrics.jsonl").size(), 15u);  // 1 + 8 + 1, then 1 + 3 + 1
}

TEST_F(TrackersTest, TheFolderIsInTheOutputByDefault) {
  ASSERT_EQ(Train({"--max_steps", "2", "--report_to", "tensorboard"}).exit_code, 0);
  ASSERT_TRUE(Exists("out/runs"));
  const std::string run = fs::directory_iterator(Path("out/runs"))->path().filename();
  EXPECT_EQ(EventFiles("out/runs/" + run).size(), 1u);
  // An evaluation alone is reported, too.
  ASSERT_EQ(RunProgram("finetune", {"--model_name_or_path", Path("out"), "--validation_file",
                                    Path("dev.csv"), "--do_eval", "--output_dir", Path("again"),
                                    "--report_to", "jsonl", "--logging_dir", Path("logs")})
                .exit_code,
            0);
  const std::vector<Json> lines = JsonLines("logs/metrics.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].at("step"), 0);
  EXPECT_EQ(lines[0].at("eval/loss"), ReadJson("again/eval_results.json").at("eval_loss"));
  EXPECT_FALSE(Exists("again/README.md"));
}

TEST_F(TrackersTest, OneLineTellsOfAFolderThatCannotBeWritten) {
  Write("file", "x");
  const RunResult run = Train(
      {"--max_steps", "3", "--do_eval", "--report_to", "all", "--logging_dir", Path("file/logs")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(
      Occurrences(run.out, "warning: tensorboard and jsonl can't start: " + Path("file/logs") +
                               ": Not a directory; training goes on without it\n"),
      1u)
      << run.out;
  EXPECT_EQ(Occurrences(run.out, "warning"), 1u) << run.out;
  EXPECT_TRUE(Exists("out/model.safetensors"));
}

// The disk is full once, in the middle of the training. Only that step is missing.
TEST_F(TrackersTest, OneLineTellsOfAFullDisk) {
  for (const auto& [name, value] :
       {std::pair("LD_PRELOAD", std::string("apps/testing/libfault_shim.so")),
        std::pair("LATHE_FAULT", "write:5:" + std::to_string(ENOSPC)),
        std::pair("LATHE_FAULT_PATH", std::string("tfevents")),
        std::pair("LATHE_FAULT_MARK", Path("mark"))})
    setenv(name, value.c_str(), 1);
  const RunResult run =
      Train({"--max_steps", "6", "--report_to", "tensorboard", "--logging_dir", Path("logs")});
  for (const char* name : {"LD_PRELOAD", "LATHE_FAULT", "LATHE_FAULT_PATH", "LATHE_FAULT_MARK"})
    unsetenv(name);
  ASSERT_TRUE(Exists("mark"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Occurrences(run.out, "warning: tensorboard can't take numbers: " + Path("logs")), 1u)
      << run.out;
  EXPECT_EQ(Occurrences(run.out, "No space left on device"), 1u) << run.out;
  EXPECT_EQ(Occurrences(run.out, "warning"), 1u) << run.out;
  const std::vector<Events> files = EventFiles("logs");
  ASSERT_EQ(files.size(), 1u);
  // The version and the hyperparameters come first.
  const std::map<int64_t, float>& losses = files[0].scalars.at("train/loss");
  EXPECT_EQ(losses.size(), 5u);
  EXPECT_FALSE(losses.contains(3));
}

TEST_F(TrackersTest, OnlyTheMainProcessWrites) {
  const RunResult run = Launch(2, Finetune("out", {"--max_steps", "3", "--do_eval", "--report_to",
                                                   "jsonl", "--logging_dir", Path("logs")}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(JsonLines("logs/metrics.jsonl").size(), 6u);
  EXPECT_NE(Read("out/README.md").find("- num_devices: 2\n"), std::string::npos);
}

TEST_F(TrackersTest, UnknownTrackersEndTheRun) {
  ExpectError(Train({"--report_to", "wandb"}),
              "--report_to wandb is not supported: Lathe sends nothing to a service", 2);
  ExpectError(Train({"--report_to", "files"}), "report_to must be tensorboard, jsonl, all or none",
              2);
  ExpectError(Train({"--report_to", "none,jsonl"}), "report_to has none beside other names", 2);
  EXPECT_FALSE(Exists("out"));
}

TEST_F(TrackersTest, ACardStandsBesideTheModelUntilItIsEdited) {
  ASSERT_EQ(Train({"--max_steps", "4", "--eval_strategy", "steps", "--eval_steps", "2", "--do_eval",
                   "--save_strategy", "steps", "--save_steps", "2"})
                .exit_code,
            0);
  const std::string card = Read("out/README.md");
  EXPECT_FALSE(Exists("out/checkpoint-2/README.md"));
  std::ostringstream loss;
  loss.precision(4);
  loss << std::fixed << ReadJson("out/eval_results.json").at("eval_loss").get<double>();
  for (const std::string part :
       {"---\nlibrary_name: transformers\n", "\n- name: out\n  results:\n", "      name: dev.csv\n",
        "\n# out\n\nThis model was trained from fresh weights on `train.csv`.\n",
        "\n- learning_rate: 0.01\n", "\n- training_steps: 4\n", "| Validation Loss |",
        "\n- Lathe "})
    EXPECT_NE(card.find(part), std::string::npos) << part << " in " << card;
  EXPECT_NE(card.find("evaluation set:\n- Loss: " + loss.str()), std::string::npos) << card;
  EXPECT_EQ(card.find(Path("")), std::string::npos);  // a path is its owner's business

  const std::vector<std::string> again = {"--max_steps", "2", "--do_eval",
                                          "--overwrite_output_dir"};
  RunResult run = Train(again);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out.find("README.md"), std::string::npos);
  EXPECT_NE(Read("out/README.md").find("\n- training_steps: 2\n"), std::string::npos);
  Write("out/README.md", Read("out/README.md") + "My own words.\n");
  const std::string edited = Read("out/README.md");
  run = Train(again);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Read("out/README.md"), edited);
  EXPECT_EQ(Occurrences(run.out, "README.md was edited or is not Lathe's, so it stays as it is"),
            1u)
      << run.out;
}

TEST_F(TrackersTest, ACardTellsWhatChangedTheModel) {
  Write("weights.json", R"({"positive": 2, "negative": 1})");
  ASSERT_EQ(Train({"--max_steps", "2", "--label_smoothing_factor", "0.1", "--class_weights",
                   Path("weights.json"), "--freeze_layers", "embeddings", "--head_learning_rate",
                   "0.02", "--layerwise_lr_decay", "0.9"})
                .exit_code,
            0);
  EXPECT_NE(Read("out/README.md")
                .find("\n- label_smoothing_factor: 0.1\n- class_weights: weights.json\n"
                      "- freeze_layers: embeddings\n- head_learning_rate: 0.02\n"
                      "- layerwise_lr_decay: 0.9\n"),
            std::string::npos)
      << Read("out/README.md");
  EXPECT_EQ(Read("out/README.md").find(Path("")), std::string::npos);
}

}  // namespace
}  // namespace lathe
