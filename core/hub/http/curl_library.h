// The functions of libcurl that downloads need. The library is opened when it is needed first:
// loading it with all that it brings takes milliseconds, which most runs need not spend.
#pragma once

#include <curl/curl.h>

namespace lathe {

// Members have the names of libcurl's functions without "curl_".
struct CurlLibrary {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
  decltype(&::curl_url) url;
  decltype(&::curl_url_cleanup) url_cleanup;
  decltype(&::curl_url_get) url_get;
  decltype(&::curl_url_set) url_set;
  decltype(&::curl_free) free;
};

// Opens the library if that is still to be done. Throws FailedPrecondition if it isn't there, and
// says how to get it. Several threads may call it.
const CurlLibrary& Curl();

}  // namespace lathe
