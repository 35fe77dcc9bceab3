// Gives each test a Hub for the programs that it runs: a test server in this process.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/tests/hub/hub_server.h"

namespace lathe {

class HubCliTest : public LaunchedTest {
 protected:
  void SetUp() override {
    LaunchedTest::SetUp();
    for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE",
                             "HUGGINGFACE_HUB_CACHE", "http_proxy", "https_proxy", "all_proxy",
                             "HF_HUB_DISABLE_PROGRESS_BARS"}) {
      unsetenv(name);
    }
    setenv("HF_ENDPOINT", hub_.url().c_str(), 1);
    AddFolder("owner/fresh", "model");
  }
  ~HubCliTest() override { setenv("HF_HUB_OFFLINE", "1", 1); }

  // Puts the folder's files on the Hub.
  void AddFolder(const std::string& name, const std::string& folder,
                 const std::string& token = "") {
    HubServerModel model;
    for (const auto& entry : std::filesystem::directory_iterator(Path(folder))) {
      if (!entry.is_regular_file()) continue;
      const std::string file = entry.path().filename().string();
      model.files[file] = {Read(folder + "/" + file), file.ends_with(".safetensors")};
    }
    model.token = token;
    hub_.Add(name, std::move(model));
  }
  std::string Blobs(const std::string& folder) const { return Path("hf/hub/" + folder + "/blobs"); }

  HubServer cdn_{{.host = "localhost"}};
  HubServer hub_{{.cdn = &cdn_}};
};

}  // namespace lathe
