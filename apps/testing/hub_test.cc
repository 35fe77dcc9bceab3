// Runs the programs with names of models on a Hub in place of folders.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/apps/testing/hub_cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

TEST_F(HubCliTest, TrainsAndPredictsFromNamesAsFromFolders) {
  ASSERT_EQ(Train({"--max_steps", "3"}).exit_code, 0);
  AddFolder("owner/trained", "out");
  const RunResult local =
      Train({"--model_name_or_path", Path("out"), "--output_dir", Path("a"), "--max_steps", "3",
             "--do_eval", "--validation_file", Path("dev.csv")});
  const RunResult named =
      Train({"--model_name_or_path", "owner/trained", "--config_name", "owner/trained",
             "--tokenizer_name", "owner/fresh", "--output_dir", Path("b"), "--max_steps", "3",
             "--do_eval", "--validation_file", Path("dev.csv")});
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_NE(named.err.find("model.safetensors: "), std::string::npos) << named.err;
  EXPECT_EQ(local.exit_code, 0) << local.err;
  EXPECT_EQ(Read("a/model.safetensors"), Read("b/model.safetensors"));
  EXPECT_EQ(Read("a/vocab.txt"), Read("b/vocab.txt"));
  const RunResult from_folder = RunProgram("lathe", {"predict", Path("out"), "a fine day"});
  const RunResult from_name = RunProgram("lathe", {"predict", "owner/trained", "a fine day"});
  EXPECT_EQ(from_name.exit_code, 0) << from_name.err;
  EXPECT_EQ(from_name.out, from_folder.out);
  hub_.ForgetRequests();
  setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_EQ(RunProgram("lathe", {"predict", "owner/trained", "a fine day"}).out, from_folder.out);
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(HubCliTest, OtherCommandsTakeNames) {
  EXPECT_EQ(RunProgram("lathe", {"tokenize", "owner/fresh", "good"}).out,
            RunProgram("lathe", {"tokenize", Path("model"), "good"}).out);
  const RunResult estimate = RunProgram("lathe", {"estimate-memory", "owner/fresh"});
  EXPECT_EQ(estimate.exit_code, 0) << estimate.err;
  EXPECT_NE(estimate.out.find("owner/fresh: bert"), std::string::npos) << estimate.out;
  ExpectError(RunProgram("lathe", {"tokenize", "owner/none", "good"}), "no such model");
  ExpectError(Train({"--model_name_or_path", "owner/fresh"}), "owner/fresh: has no weights");
  ExpectError(Train({"--config_name", "owner/fresh", "--model_revision", "v7"}),
              "no revision \"v7\"");
  // The new folder would go before the Hub.
  ExpectError(Train({"--config_name", "owner/fresh", "--output_dir", "./owner//fresh/"}),
              "--output_dir is also the name of a model on the Hub", 2);
  EXPECT_FALSE(std::filesystem::exists("owner"));
}

// A path such as bert/config.json could be a model's name, too.
TEST_F(HubCliTest, FilesGoBeforeTheHub) {
  std::filesystem::create_directories("bert");
  for (const char* file : {"config.json", "vocab.txt"}) {
    std::filesystem::copy_file(Path(std::string("model/") + file), std::string("bert/") + file);
  }
  const RunResult run = Train({"--config_name", "bert/config.json", "--max_steps", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  ExpectError(RunProgram("lathe", {"predict", "bert/config.json", "good"}),
              "bert/config.json: is a file, not a model's folder");
  ExpectError(Train({"--model_name_or_path", "bert/config.json", "--overwrite_output_dir"}),
              "bert/config.json: is a file, not a model's folder");
  ExpectError(Train({"--tokenizer_name", "bert/config.json", "--overwrite_output_dir"}),
              "bert/config.json");
  std::filesystem::remove_all("bert");
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(HubCliTest, ReadsTheColumnsOfTheTrainingByName) {
  std::string rows = "title,stars,review\n";
  for (int i = 0; i < 20; ++i)
    rows += i % 2 == 0 ? "bad,positive,a good film\n" : "good,negative,a bad film\n";
  Write("reviews.csv", rows);
  const RunResult train = Train({"--train_file", Path("reviews.csv"), "--text_columns", "review",
                                 "--label_column", "stars", "--max_steps", "4"});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  AddFolder("owner/trained", "out");
  const auto evaluate = [&](const std::string& model, const std::string& file) {
    return RunProgram("lathe", {"evaluate", model, Path(file), "--num_threads", "1", "--output",
                                Path("report.json")});
  };
  const auto predict = [&](const std::string& model, const std::string& file) {
    return RunProgram("lathe", {"predict", model, "--file", Path(file), "--num_threads", "1"});
  };
  ASSERT_EQ(evaluate(Path("out"), "reviews.csv").exit_code, 0);
  const std::string report = Read("report.json");
  ASSERT_EQ(RunProgram("lathe", {"download", "owner/trained"}).exit_code, 0);
  for (const char* offline : {"0", "1"}) {
    setenv("HF_HUB_OFFLINE", offline, 1);
    const RunResult run = evaluate("owner/trained", "reviews.csv");
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err,
              "note: the texts are in \"review\", and the labels are in \"stars\", as in the "
              "training\n");
    EXPECT_EQ(Read("report.json"), report);
    const RunResult predictions = predict("owner/trained", "reviews.csv");
    EXPECT_EQ(predictions.err, "note: the texts are in \"review\", as in the training\n");
    EXPECT_EQ(predictions.out, predict(Path("out"), "reviews.csv").out);
    const RunResult finetune =
        RunProgram("finetune", {"--model_name_or_path", "owner/trained", "--validation_file",
                                Path("reviews.csv"), "--do_eval", "--output_dir", Path("eval")});
    EXPECT_EQ(finetune.exit_code, 0) << finetune.err;
    EXPECT_EQ(finetune.err, run.err);
  }
  unsetenv("HF_HUB_OFFLINE");

  // A model that something else has trained, on a server without a list of files.
  std::filesystem::remove(Path("out/data_columns.json"));
  AddFolder("owner/other", "out");
  hub_.Fail({.path = "/api/models/", .times = -1, .status = 404});
  ASSERT_EQ(RunProgram("lathe", {"download", "owner/other"}).exit_code, 0);
  for (const RunResult& run :
       {evaluate("owner/other", "dev.csv"), predict("owner/other", "dev.csv")}) {
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
  }
  EXPECT_EQ(hub_.Count("HEAD", "owner/other/resolve/" + std::string(40, '1') + "/data_columns"), 1);
}

TEST_F(HubCliTest, ACardNamesTheModelOnTheHub) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  AddFolder("owner/trained", "out");
  const RunResult run = Train({"--model_name_or_path", "owner/trained", "--config_name",
                               "owner/trained", "--tokenizer_name", "owner/trained", "--output_dir",
                               Path("again"), "--max_steps", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::string card = Read("again/README.md");
  for (const char* part : {"\nbase_model: owner/trained\n", "\n- config_name: owner/trained\n",
                           "\n- tokenizer_name: owner/trained\n",
                           "[owner/trained](https://huggingface.co/owner/trained)"})
    EXPECT_NE(card.find(part), std::string::npos) << part << " in " << card;
}

TEST_F(HubCliTest, RanksFetchOnce) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  AddFolder("owner/trained", "out");
  hub_.ForgetRequests();
  const RunResult run = Launch(
      3,
      Finetune("many", {"--model_name_or_path", "owner/trained", "--config_name", "owner/trained",
                        "--tokenizer_name", "owner/trained", "--max_steps", "2"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(cdn_.Count("GET", "/stored/"), 1);
  EXPECT_EQ(hub_.Count("GET", "vocab.txt"), 1);
  EXPECT_EQ(hub_.Count("HEAD", "/resolve/main/config.json"), 3);  // one for each option
  const RunResult none = Launch(3, Finetune("none", {"--model_name_or_path", "owner/none"}));
  EXPECT_EQ(none.exit_code, 1);
  const size_t error = none.err.find("error: owner/none at " + hub_.url() + ": no such model");
  EXPECT_NE(error, std::string::npos) << none.err;
  EXPECT_EQ(none.err.find("error: ", error + 1), std::string::npos) << none.err;
}

TEST_F(HubCliTest, TheCommandToGoOnNamesOneCheckpoint) {
  for (const std::string& option :
       {std::string("--save_steps=2"), std::string("--resume-from-checkpoint=true")}) {
    const RunResult run = Train({"--num_train_epochs", "1000", "--save_steps", "2", option},
                                {.interrupt_after = "saved " + Path("out")});
    EXPECT_EQ(run.exit_code, 130) << run.out << run.err;
    const size_t begin = run.out.find("to go on, run: ");
    ASSERT_NE(begin, std::string::npos) << run.out;
    EXPECT_EQ(run.out.find("--resume-from", begin), std::string::npos) << run.out;
    EXPECT_NE(run.out.find(" --resume_from_checkpoint " + Path("out"), begin), std::string::npos)
        << run.out;
  }
  EXPECT_EQ(Read("out/report.html").find("--resume"), std::string::npos);
}

TEST_F(HubCliTest, AResumeNamesTheCommitOfAModelThatHasMoved) {
  const std::string old_commit(40, '1'), new_commit(40, '2');
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  AddFolder("owner/trained", "out");
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--model_name_or_path", "owner/trained",
                                      "--config_name",        "owner/trained",
                                      "--output_dir",         Path("a"),
                                      "--max_steps",          "2",
                                      "--save_steps",         "1",
                                      "--disable_tqdm"};
    words.insert(words.end(), more.begin(), more.end());
    return Train(words);
  };
  const RunResult first = train({});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  for (const char* file : {"a/trainer_state.json", "a/checkpoint-1/trainer_state.json"})
    EXPECT_NE(Read(file).find("\"owner/trained\": \"" + old_commit + "\""), std::string::npos)
        << file;
  const std::string report = Read("a/report.html");
  EXPECT_NE(report.find("commit of owner/trained"), std::string::npos);
  EXPECT_NE(report.find(old_commit), std::string::npos);
  const std::string weights = Read("a/model.safetensors");

  // The branch moves to a commit with another configuration.
  nlohmann::json config = ParseJson(Read("out/config.json"));
  config["hidden_dropout_prob"] = 0.25;
  HubServerModel moved;
  for (const char* file : {"config.json", "vocab.txt", "tokenizer_config.json",
                           "special_tokens_map.json", "model.safetensors"}) {
    if (std::filesystem::exists(Path(std::string("out/") + file)))
      moved.files[file] = {Read(std::string("out/") + file)};
  }
  moved.files["config.json"] = {DumpJson(config)};
  moved.revisions = {{"main", new_commit}, {"old", old_commit}};
  hub_.Add("owner/trained", std::move(moved));
  const std::vector<std::string> resume = {"--resume_from_checkpoint", Path("a/checkpoint-1")};
  const RunResult refused = train(resume);
  ExpectError(refused, "hidden_dropout_prob was 0.1 and is 0.25", 2);
  EXPECT_NE(refused.err.find("owner/trained has moved since: set --model_revision " + old_commit),
            std::string::npos)
      << refused.err;
  const RunResult resumed = train({resume[0], resume[1], "--model_revision", old_commit});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(Read("a/model.safetensors"), weights);
  // A training from a folder notes no commit.
  EXPECT_EQ(Read("out/trainer_state.json").find("HubCommits"), std::string::npos);
}

void ExpectNoSecretIn(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(text.find("hf_secret"), std::string::npos) << entry.path();
  }
}

// They come from options in any spelling, and from the words of a parent process that stays.
TEST_F(HubCliTest, NeitherTheReportNorTheOutputHoldsASecret) {
  std::vector<std::string> words = {"600", "sh", "-c", "shift 6; exec \"$@\""};
  const std::string parent =
      "sh --api-key hf_secret -genv HF_TOKEN hf_secret --quiet "
      "env HF_TOKEN=hf_secret my-api-key=hf_secret A=1,B_PASSWORD=hf_secret;more "
      "a_proxy=http://user:hf_secret@proxy:3128 DB_PASSWD=hf_secret KEPT=yes "
      "apps/finetune/finetune";
  std::istringstream stream(parent);
  for (std::string word; stream >> word;) words.push_back(word);
  for (const std::string& arg : TrainingArgs(
           "out", {"--num_threads", "1", "--num_train_epochs", "1000", "--save_steps", "2",
                   "--class_weights", "negative=2,positive=1", "--hub_token", "hf_secret",
                   "--push_to_hub_token=hf_secret", "--hub-token", "hf_secret",
                   "--push-to-hub-token=hf_secret", "--token", "hf_secret", "--report_to", "all"}))
    words.push_back(arg);
  for (const bool resumes : {false, true}) {
    if (resumes) words.push_back("--resume-from-checkpoint=true");
    const RunResult run =
        RunProgram("/usr/bin/timeout", words, {.interrupt_after = "saved " + Path("out")});
    EXPECT_EQ(run.exit_code, 130) << run.out << run.err;
    EXPECT_EQ((run.out + run.err).find("hf_secret"), std::string::npos) << run.out << run.err;
    const size_t begin = run.out.find("to go on, run: ");
    ASSERT_NE(begin, std::string::npos) << run.out;
    const std::string line = run.out.substr(begin);
    for (const char* part : {"timeout 600 sh -c 'shift 6; exec \"$@\"' sh --api-key '' -genv "
                             "HF_TOKEN '' --quiet env HF_TOKEN= my-api-key= A=1,B_PASSWORD= "
                             "a_proxy=http://proxy:3128 DB_PASSWD= KEPT=yes apps/",
                             " --class_weights negative=2,positive=1 --report_to all "
                             "--resume_from_checkpoint "})
      EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
    EXPECT_EQ(line.find("--resume-from"), std::string::npos) << line;
  }
  EXPECT_NE(Read("out/report.html").find("KEPT=yes"), std::string::npos);
  EXPECT_EQ(Read("out/report.html").find("resume"), std::string::npos);
  ExpectNoSecretIn(Path("out"));
}

TEST_F(HubCliTest, NoSecretOfAnArgumentsFileIsShown) {
  const std::string json =
      R"({"token": "hf_secret", "hub_token": "hf_secret", "push_to_hub_token": "hf_secret",
          "report_to": "all", "save_steps": 2})";
  Write("args.json", json);
  Write("args.yaml", "# the same\n" + json + "\n");
  for (const char* file : {"args.json", "args.yaml"}) {
    std::vector<std::string> words = {Path(file)};
    for (const std::string& arg :
         TrainingArgs("out", {"--num_threads", "1", "--num_train_epochs", "1000"}))
      words.push_back(arg);
    const RunResult run =
        RunProgram("finetune", words, {.interrupt_after = "saved " + Path("out")});
    EXPECT_EQ(run.exit_code, 130) << run.out << run.err;
    EXPECT_NE(run.out.find(Path(file) + " "), std::string::npos) << run.out;
    EXPECT_EQ((run.out + run.err).find("hf_secret"), std::string::npos) << run.out << run.err;
    ExpectNoSecretIn(Path("out"));
    std::filesystem::remove_all(Path("out"));
  }
}

TEST_F(HubCliTest, NeverPrintsTheToken) {
  AddFolder("owner/private", "model", "hf_secret");
  const RunResult run = Train({"--config_name", "owner/private", "--token", "hf_secret",
                               "--num_train_epochs", "1000", "--tokenizer_name=" + Path("model")},
                              {.interrupt_after = "step 3/"});
  EXPECT_NE(run.out.find("to go on, run:"), std::string::npos) << run.out << run.err;
  EXPECT_EQ((run.out + run.err).find("hf_secret"), std::string::npos) << run.out << run.err;
}

}  // namespace
}  // namespace lathe
