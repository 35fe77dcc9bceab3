// What decides how models are taken from a Hub: options of the caller, and the environment
// variables of huggingface_hub.
#pragma once

#include <string>

namespace lathe {

// Empty members are decided by the environment; see docs/environment.md.
struct HubOptions {
  std::string revision = "main";  // a branch, a tag or a commit
  std::string token = {};         // proves to the Hub who asks
  std::string cache_dir = {};     // the folder that holds models--owner--name
  bool offline = false;           // no request is made
  bool show_progress = true;      // bars, and lines about waits, on standard error
  bool show_bars = true;          // if false, the lines about waits alone
};

struct HubSettings {
  std::string endpoint;  // such as "https://huggingface.co", without a slash at its end
  std::string revision;
  std::string token;  // "" if there is none
  std::string token_file;
  std::string cache_dir;
  bool offline = false;
  bool show_progress = true;  // bars, or lines where standard error is no terminal
  bool show_waits = true;     // a line if another process or the server makes us wait
  bool use_symlinks = true;
  bool check_cached = false;  // compare what is cached with its hash, fetch it again if damaged
  double etag_timeout = 10, download_timeout = 10;  // seconds
  double first_delay = 1;  // seconds before the first new attempt; doubled up to eight times
  double longest_asked_delay = 60;  // seconds that a new attempt waits if the server says so
  double lock_timeout = 600;        // seconds that another process may hold a lock without progress
};

// Returns the folder that Hugging Face's libraries keep their files in: $HF_HOME, else
// $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface.
std::string HuggingFaceHome();

// Returns the folder of the models that were fetched: `given`, else $HF_HUB_CACHE or its old name,
// else "hub" in HuggingFaceHome(). Reads nothing that only requests need.
std::string HubCacheFolder(const std::string& given);

// Reads the environment. Throws InvalidArgument for values that make no sense.
HubSettings ReadHubSettings(const HubOptions& options);

}  // namespace lathe
