// Runs programs on models whose weights have other formats than safetensors.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/safetensors/safetensors.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

class CliWeightsTest : public CliTest {
 protected:
  // Makes a model's folder with the tiny BERT's weights in one of its formats.
  std::string MakeModel(const std::string& format) const {
    const fs::path bert = "tests/golden/weights/bert", model = Path(format);
    fs::create_directories(model);
    fs::copy(bert / format, model);
    fs::copy(bert / "config.json", model);
    Write(format + "/vocab.txt",
          "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nfilm\n##s\ngood\nbad\nplot\n");
    return model;
  }
  RunResult Predict(const std::string& model) const {
    return RunProgram("lathe", {"predict", model, "a good film", "bad plot"});
  }
  // Trains for two steps and returns the model's bytes. Expects `note` on standard output.
  std::string Finetuned(const std::string& format, const std::string& note = "") const {
    Write("two.csv", "text,label\na good film,LABEL_0\nbad plot,LABEL_1\nfilm,LABEL_2\n");
    const std::string out = format + "_out";
    const RunResult run =
        RunProgram("finetune", {"--model_name_or_path", MakeModel(format), "--train_file",
                                Path("two.csv"), "--do_train", "--max_steps", "2", "--output_dir",
                                Path(out), "--device", "cpu", "--num_threads", "1"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NE(run.out.find(note), std::string::npos) << run.out;
    return Read(out + "/model.safetensors");
  }
};

TEST_F(CliWeightsTest, FoldersWithoutSafetensors) {
  const RunResult expected = Predict(MakeModel("safetensors"));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  EXPECT_NE(expected.out, "");
  for (const char* format : {"zip", "old", "shards", "h5", "h5-shards", "h5-einsum"}) {
    const RunResult run = Predict(MakeModel(format));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, expected.out) << format;
  }
  fs::remove_all(Path("safetensors"));
  fs::remove_all(Path("zip"));
  const std::string trained = Finetuned("safetensors");
  EXPECT_NE(trained, "");
  EXPECT_EQ(Finetuned("zip"), trained);
  fs::remove_all(Path("h5"));
  EXPECT_EQ(Finetuned("h5"), trained);
}

TEST_F(CliWeightsTest, CheckpointsOfTrainingPrograms) {
  const std::string trained = Finetuned("safetensors");
  EXPECT_EQ(Finetuned("lightning",
                      "the model's names in the checkpoint start with \"state_dict.model.\", which "
                      "is left out\n"),
            trained);
  EXPECT_EQ(Finetuned("data-parallel", "start with \"module.\", which"), trained);
}

TEST_F(CliWeightsTest, TensorsBesideAWrappedModelAreNotUsed) {
  const RunResult expected = Predict(MakeModel("safetensors"));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  const std::string file = Path("safetensors/model.safetensors");
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const SafetensorsReader reader(file);
    for (const auto& [name, entry] : reader.entries())
      tensors.emplace_back("model." + name, reader.Read(name));
  }
  tensors.emplace_back("loss.weight", Tensor::FromVector<float>({1, 1, 2}));
  WriteSafetensors(file, tensors);
  const RunResult run = Predict(Path("safetensors"));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, expected.out);
}

TEST_F(CliWeightsTest, MistakesAreOneLine) {
  const std::string model = MakeModel("zip"), file = model + "/pytorch_model.bin";
  std::string bytes = Read("zip/pytorch_model.bin");
  const size_t at = bytes.find("ccollections\nOrderedDict\n");
  ASSERT_NE(at, std::string::npos);
  // Only the old form has no CRC-32 that would notice.
  const std::string old_model = MakeModel("old");
  std::string old = Read("old/pytorch_model.bin");
  const std::string name = "ccollections\nOrderedDict\n";
  old.replace(old.find(name), name.size(), "cposix\nsystem\n");
  Write("old/pytorch_model.bin", old);
  ExpectError(
      Predict(old_model),
      "old/pytorch_model.bin: needs \"posix.system\", which no plain file of weights needs");
  bytes[at] ^= 1;
  Write("zip/pytorch_model.bin", bytes);
  ExpectError(Predict(model), "in it has another CRC-32 than the file says");
  fs::remove(file);
  ExpectError(Predict(model),
              "zip: has no weights (model.safetensors, pytorch_model.bin or tf_model.h5");
  fs::create_symlink("gone", file);
  ExpectError(Predict(model), "zip/pytorch_model.bin: is a link to gone, which is not there");
}

}  // namespace
}  // namespace lathe
