#include "lathe/core/hub/http/curl_library.h"

#include <absl/status/status.h>
#include <dlfcn.h>

#include <string>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

constexpr char kFile[] = "libcurl.so.4";

Error Unusable(const std::string& why) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "downloads need " + std::string(kFile) + ": " + why,
               "install Debian's package libcurl4, or name a local folder");
}

CurlLibrary OpenCurl() {
  void* const handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);  // stays open until the process ends
  if (handle == nullptr) throw Unusable(dlerror());
  const auto find = [&](const char* name, auto& function) {
    void* const address = dlsym(handle, name);
    if (address == nullptr) throw Unusable("it has no " + std::string(name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  CurlLibrary c;
  find("curl_global_init", c.global_init);
  find("curl_easy_init", c.easy_init);
  find("curl_easy_cleanup", c.easy_cleanup);
  find("curl_easy_reset", c.easy_reset);
  find("curl_easy_setopt", c.easy_setopt);
  find("curl_easy_perform", c.easy_perform);
  find("curl_easy_getinfo", c.easy_getinfo);
  find("curl_easy_strerror", c.easy_strerror);
  find("curl_slist_append", c.slist_append);
  find("curl_slist_free_all", c.slist_free_all);
  find("curl_url", c.url);
  find("curl_url_cleanup", c.url_cleanup);
  find("curl_url_get", c.url_get);
  find("curl_url_set", c.url_set);
  find("curl_free", c.free);
  if (c.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw Unusable("it can't be initialized");
  return c;
}

}  // namespace

const CurlLibrary& Curl() {
  static const CurlLibrary library = OpenCurl();
  return library;
}

}  // namespace lathe
