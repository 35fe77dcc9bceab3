// What each environment variable of huggingface_hub does.
#include <cstdlib>
#include <optional>

#include "lathe/core/hub/hub_cache.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

// Sets a variable as long as it exists.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST_F(HubTest, FoldersComeFromVariables) {
  const Variable home("HOME", root_ + "/home"), part("LATHE_TEST_PART", "part");
  {
    const Variable unset("HF_HOME", ""), xdg("XDG_CACHE_HOME", "");
    EXPECT_EQ(HuggingFaceHome(), root_ + "/home/.cache/huggingface");
    const Variable set("XDG_CACHE_HOME", "~/$LATHE_TEST_PART");
    EXPECT_EQ(HubCacheFolder(""), root_ + "/home/part/huggingface/hub");
  }
  const Variable hf_home("HF_HOME", "/a/${LATHE_TEST_PART}s/$LATHE_TEST_PART");
  EXPECT_EQ(HubCacheFolder(""), "/a/parts/part/hub");
  const Variable old_cache("HUGGINGFACE_HUB_CACHE", "~/old");
  EXPECT_EQ(HubCacheFolder(""), root_ + "/home/old");
  const Variable cache("HF_HUB_CACHE", "/$LATHE_TEST_NONE/${LATHE_TEST_NONE}/${/$/$");
  EXPECT_EQ(HubCacheFolder(""), "/$LATHE_TEST_NONE/${LATHE_TEST_NONE}/${/$/$");
  EXPECT_EQ(ReadHubSettings({.cache_dir = "~/$given"}).cache_dir, root_ + "/home/$given");
}

TEST_F(HubTest, TheTokensFileMayLieElsewhere) {
  PublishText(root_ + "/token", "from_home");
  PublishText(root_ + "/elsewhere", " from_elsewhere\r\n");
  for (const std::string& path : {root_ + "/elsewhere", std::string("~/elsewhere"),
                                  std::string("$LATHE_TEST_FOLDER/elsewhere")}) {
    const Variable home("HOME", root_), folder("LATHE_TEST_FOLDER", root_);
    const Variable token_path("HF_TOKEN_PATH", path);
    EXPECT_EQ(ReadHubSettings({}).token_file, root_ + "/elsewhere");
    EXPECT_EQ(ReadHubSettings({}).token, "from_elsewhere");
  }
  EXPECT_EQ(ReadHubSettings({}).token, "from_home");
  hub_.Add("o/private", {.files = {{"config.json", {"{}"}}}, .token = "from_elsewhere"});
  const Variable none("HF_TOKEN_PATH", root_ + "/none");
  EXPECT_EQ(ReadHubSettings({}).token, "");
  ExpectError([&] { FetchCheckpoint("o/private", {.config = true}, Settings()); },
              "no such model, or it is private", "or the file " + root_ + "/none");
  const Variable there("HF_TOKEN_PATH", root_ + "/elsewhere");
  EXPECT_EQ(FetchCheckpoint("o/private", {.config = true}, Settings()).commit, kCommit);
}

TEST_F(HubTest, TheTokensOldVariableCountsToo) {
  PublishText(root_ + "/token", "from_file");
  const Variable old("HUGGING_FACE_HUB_TOKEN", "from_old_name\n");
  EXPECT_EQ(ReadHubSettings({}).token, "from_old_name");
  {
    const Variable empty("HF_TOKEN", "");
    EXPECT_EQ(ReadHubSettings({}).token, "from_old_name");
    const Variable set("HF_TOKEN", "from_variable");
    EXPECT_EQ(ReadHubSettings({}).token, "from_variable");
  }
  const Variable blank("HF_TOKEN", " \n");
  EXPECT_EQ(ReadHubSettings({}).token, "from_file");
  EXPECT_EQ(ReadHubSettings({.token = "given"}).token, "given");
}

}  // namespace
}  // namespace lathe
