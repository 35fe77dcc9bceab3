// What a Hub answers: it may be another program, or a proxy. The input is one answer of HTTP, which
// is that for a file's metadata, for the list of files and for the file's bytes alike.
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lathe/core/hub/fetch_file.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_client.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/impostor.h"

namespace {

constexpr char kModel[] = "owner/model", kFile[] = "config.json";
constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

// Returns the address of the server. It is also the proxy, so that an answer that leads to another
// host leads here.
std::string Endpoint(int port) {
  const std::string endpoint = "http://127.0.0.1:" + std::to_string(port);
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy"}) {
    setenv(name, endpoint.c_str(), 1);
  }
  unsetenv("no_proxy");
  unsetenv("NO_PROXY");
  return endpoint;
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  static Impostor impostor;
  static const std::string endpoint = Endpoint(impostor.port());
  impostor.Say(input);
  const std::string folder = ScratchFolder() + "/cache";
  std::filesystem::remove_all(folder);
  HubClient client({.endpoint = endpoint,
                    .revision = "main",
                    .token = "secret",
                    .token_file = "",
                    .cache_dir = folder,
                    .show_progress = false,
                    .etag_timeout = 5,
                    .download_timeout = 5,
                    .first_delay = 0,
                    .longest_asked_delay = 0,
                    .lock_timeout = 1},
                   kModel);
  CallAll({[&] { client.FindFile("main", kFile, 1); }, [&] { client.List("main"); },
           [&] { FetchFile(client, HubCache(folder, kModel), kCommit, kFile); }});
}
