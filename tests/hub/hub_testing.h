// Gives each test a Hub with a small model, a host for its large files, and an empty cache.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/hub/resolve_checkpoint.h"
#include "lathe/tests/hub/hub_server.h"

namespace lathe {

inline constexpr char kModel[] = "owner/name";
inline constexpr char kCommit[] = "1111111111111111111111111111111111111111";
inline constexpr CheckpointParts kAllParts = {
    .config = true, .tokenizer = true, .columns = true, .weights = true};

class HubTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/" +
            testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
            std::to_string(getpid());
    std::filesystem::create_directories(root_);
    for (const char* name : {"HF_HUB_CACHE",
                             "HUGGINGFACE_HUB_CACHE",
                             "HF_TOKEN",
                             "HUGGING_FACE_HUB_TOKEN",
                             "HF_TOKEN_PATH",
                             "HF_HUB_OFFLINE",
                             "TRANSFORMERS_OFFLINE",
                             "HF_HUB_DISABLE_SYMLINKS",
                             "SSL_CERT_FILE",
                             "CURL_CA_BUNDLE",
                             "REQUESTS_CA_BUNDLE",
                             "http_proxy",
                             "https_proxy",
                             "HTTPS_PROXY",
                             "all_proxy",
                             "ALL_PROXY",
                             "no_proxy",
                             "NO_PROXY",
                             "HF_HUB_ETAG_TIMEOUT",
                             "HF_HUB_DOWNLOAD_TIMEOUT",
                             "HF_HUB_DISABLE_PROGRESS_BARS",
                             "HF_HUB_DISABLE_IMPLICIT_TOKEN"}) {
      unsetenv(name);
    }
    setenv("HF_HOME", root_.c_str(), 1);
    setenv("HF_ENDPOINT", hub_.url().c_str(), 1);
    weights_ = RandomBytes(100'000, 7);
    hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\"}"}},
                                {"vocab.txt", {"[PAD]\n[UNK]\n"}},
                                {"README.md", {"# A model\n"}},
                                {"onnx/model.onnx", {"x"}},
                                {"model.safetensors", {weights_, true}},
                                {"pytorch_model.bin", {"pickle", true}}}});
  }
  ~HubTest() override { std::filesystem::remove_all(root_); }

  // The settings of the environment, but with short delays.
  HubSettings Settings() const {
    HubSettings settings = ReadHubSettings({.show_progress = false});
    settings.first_delay = 0.002;
    settings.download_timeout = 2;
    return settings;
  }
  std::string Fetch(const CheckpointParts& parts = kAllParts) const {
    return FetchCheckpoint(kModel, parts, Settings()).folder;
  }
  std::string Cache() const { return root_ + "/hub/models--owner--name"; }
  std::string Weights(const std::string& folder) const {
    return ReadFile(folder + "/model.safetensors");
  }
  bool Exists(const std::string& path) const {
    return std::filesystem::exists(std::filesystem::symlink_status(path));
  }
  // Returns all files and links under the folder, as "path" or "path -> target".
  static std::vector<std::string> Tree(const std::string& folder);
  // Expects an error whose message holds `part` and whose hint holds `hint`.
  static void ExpectError(const std::function<void()>& body, const std::string& part,
                          const std::string& hint = "");
  // Runs `body` in a child that has no right to pass over permissions, as root has. Returns its
  // exit code, or -1.
  static int RunWithoutRights(const std::function<int()>& body);
  // Sets the permissions of all folders in the folder.
  static void SetFolderRights(const std::string& root, std::filesystem::perms rights);

  std::string root_, weights_;
  HubServer cdn_{{.host = "localhost"}};
  HubServer hub_{{.cdn = &cdn_}};
};

}  // namespace lathe
