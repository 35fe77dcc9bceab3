#include "lathe/core/hub/http/http.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/hub/http/curl_library.h"
#include "lathe/core/version.h"

namespace lathe {
namespace {

constexpr size_t kLargestBody = size_t{16} << 20;

HttpFailure FailureOf(CURLcode code) {
  switch (code) {
    case CURLE_OK:
      return HttpFailure::kNone;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return HttpFailure::kResolve;
    case CURLE_COULDNT_CONNECT:
    case CURLE_PROXY:
      return HttpFailure::kConnect;
    case CURLE_OPERATION_TIMEDOUT:
      return HttpFailure::kTimeout;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
      return HttpFailure::kTls;
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_WEIRD_SERVER_REPLY:
      return HttpFailure::kBroken;
    default:
      return HttpFailure::kOther;
  }
}

// What the callbacks of one request share.
struct Transfer {
  HttpResponse response;
  HttpSink* sink = nullptr;
  bool connected = false, headers_ended = false, begun = false, stalled = false, too_large = false;
  bool dropped = false;      // the body, because nobody reads it
  double stall_timeout = 0;  // seconds
  std::chrono::steady_clock::time_point last_byte = std::chrono::steady_clock::now();
  std::exception_ptr error;

  bool ToSink() const { return sink != nullptr && response.status / 100 == 2; }
  // Calls `body`. An exception must not pass through libcurl: it is kept, and false ends the
  // transfer.
  template <typename Body>
  bool Guard(const Body& body) {
    try {
      body();
      return true;
    } catch (...) {
      error = std::current_exception();
      return false;
    }
  }
  void Begin() {
    if (begun || !ToSink()) return;
    begun = true;
    sink->Begin(response);
  }
};

// Is called once there is a connection, before the request is sent.
int OnConnection(void* user, char*, char*, int, int) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  transfer.connected = true;
  transfer.last_byte = std::chrono::steady_clock::now();
  return CURL_PREREQFUNC_OK;
}

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  std::string line(data, size * count);
  absl::StripAsciiWhitespace(&line);
  // Headers may be sent without an end, too. So only the last one counts as progress.
  if (line.empty() && transfer.response.status >= 200 && !transfer.headers_ended) {
    transfer.headers_ended = true;
    transfer.last_byte = std::chrono::steady_clock::now();
  }
  const bool ok = transfer.Guard([&] {
    if (line.starts_with("HTTP/")) {  // the first line of an answer, after one with status 100, say
      const size_t space = std::min(line.find(' '), line.size());
      transfer.response.headers.clear();
      transfer.response.status = std::atoi(line.c_str() + space);
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return;
    std::string value = line.substr(colon + 1);
    absl::StripAsciiWhitespace(&value);
    transfer.response.headers[absl::AsciiStrToLower(line.substr(0, colon))] = std::move(value);
  });
  return ok ? size * count : 0;
}

size_t OnBody(char* data, size_t size, size_t count, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  const size_t bytes = size * count;
  transfer.last_byte = std::chrono::steady_clock::now();
  transfer.dropped = transfer.sink != nullptr && !transfer.ToSink();
  if (transfer.dropped) return 0;  // ends the transfer
  const bool ok = transfer.Guard([&] {
    transfer.Begin();
    if (transfer.ToSink()) return transfer.sink->Write(data, bytes);
    std::string& body = transfer.response.body;
    transfer.too_large = bytes > kLargestBody - body.size();
    if (!transfer.too_large) body.append(data, bytes);
  });
  return ok && !transfer.too_large ? bytes : 0;
}

// Is called about once a second. Ends a transfer of which nothing comes any more: libcurl's own
// limit looks at the mean of five seconds, so it would need longer. Another of its limits ends a
// connection that doesn't come about.
int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  const std::chrono::duration<double> quiet = std::chrono::steady_clock::now() - transfer.last_byte;
  transfer.stalled = transfer.connected && quiet.count() > transfer.stall_timeout;
  return transfer.stalled ? 1 : 0;
}

// Returns the status with which the proxy has refused a request for good, or 0.
int ProxyRefusal(CURL* easy, CURLcode code, int status) {
  constexpr int kAsksForUser = 407;  // no server but a proxy says this
  if (code == CURLE_OK) return status == kAsksForUser ? status : 0;
  long connect = 0;  // the answer to CONNECT, which goes before TLS
  if (Curl().easy_getinfo(easy, CURLINFO_HTTP_CONNECTCODE, &connect) != CURLE_OK) return 0;
  const bool may_pass = connect == 408 || connect == 429;
  return connect / 100 == 4 && !may_pass ? static_cast<int>(connect) : 0;
}

// Returns the file of certificates that the user has named, or null.
const char* CertificateFile() {
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    if (const char* file = std::getenv(name); file != nullptr && *file != 0) return file;
  }
  return nullptr;
}

// The parts of an address.
class Url {
 public:
  explicit Url(const std::string& text)
      : url_(Curl().url(), Curl().url_cleanup), text_(WithoutUser(text)) {
    Set(text);
  }
  void Set(const std::string& text) {
    if (Curl().url_set(url_.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
      throw InvalidArgument("\"" + WithoutUser(text) + "\" is no address",
                            "an address begins with https://");
    }
  }
  std::string Get(CURLUPart part, unsigned int flags = 0) const {
    char* value = nullptr;
    if (Curl().url_get(url_.get(), part, &value, flags) != CURLUE_OK) {
      throw InvalidArgument("\"" + text_ + "\" is no address", "an address begins with https://");
    }
    const std::string result = value;
    Curl().free(value);
    return result;
  }

 private:
  std::unique_ptr<CURLU, void (*)(CURLU*)> url_;
  std::string text_;  // for messages
};

}  // namespace

std::string HttpResponse::Header(const std::string& lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? "" : found->second;
}

struct HttpClient::Impl {
  std::unique_ptr<CURL, void (*)(CURL*)> easy{Curl().easy_init(), Curl().easy_cleanup};
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {
  if (impl_->easy == nullptr) throw Error(absl::StatusCode::kInternal, "libcurl can't start");
}
HttpClient::~HttpClient() = default;

HttpResponse HttpClient::Send(const HttpRequest& request, HttpSink* sink) {
  const CurlLibrary& curl = Curl();
  CURL* const easy = impl_->easy.get();
  Transfer transfer;
  transfer.sink = sink;
  curl_slist* list = nullptr;
  for (const std::string& header : request.headers) list = curl.slist_append(list, header.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(list, curl.slist_free_all);

  char text[CURL_ERROR_SIZE] = "";
  const auto ms = [](double seconds) { return static_cast<long>(seconds * 1000); };
  curl.easy_reset(easy);
  curl.easy_setopt(easy, CURLOPT_URL, request.url.c_str());
  curl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl.easy_setopt(easy, CURLOPT_HTTPHEADER, headers.get());
  curl.easy_setopt(easy, CURLOPT_USERAGENT, ("lathe/" + std::string(kVersion)).c_str());
  curl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl.easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, ms(request.connect_timeout));
  curl.easy_setopt(easy, CURLOPT_TIMEOUT_MS, ms(request.total_timeout));
  transfer.stall_timeout = request.stall_timeout;
  curl.easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  curl.easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl.easy_setopt(easy, CURLOPT_XFERINFODATA, &transfer);
  curl.easy_setopt(easy, CURLOPT_PREREQFUNCTION, OnConnection);
  curl.easy_setopt(easy, CURLOPT_PREREQDATA, &transfer);
  curl.easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
  curl.easy_setopt(easy, CURLOPT_ERRORBUFFER, text);
  curl.easy_setopt(easy, CURLOPT_HEADERFUNCTION, OnHeader);
  curl.easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, OnBody);
  curl.easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  if (request.method == "HEAD") curl.easy_setopt(easy, CURLOPT_NOBODY, 1L);
  if (const char* file = CertificateFile()) curl.easy_setopt(easy, CURLOPT_CAINFO, file);

  CURLcode code = curl.easy_perform(easy);
  if (transfer.dropped) code = CURLE_OK;
  if (code == CURLE_OK) transfer.Guard([&] { transfer.Begin(); });
  if (transfer.error) std::rethrow_exception(transfer.error);
  transfer.response.failure = transfer.stalled ? HttpFailure::kTimeout : FailureOf(code);
  if (transfer.stalled) {
    const bool in_headers = transfer.response.status != 0 && !transfer.headers_ended;
    transfer.response.failure_text =
        in_headers ? "its headers did not end" : "nothing came any more";
  } else if (transfer.too_large) {
    transfer.response.failure = HttpFailure::kTooLarge;
    transfer.response.failure_text = "more than 16 MiB";
  } else if (code != CURLE_OK) {
    transfer.response.failure_text = *text ? text : curl.easy_strerror(code);
  }
  transfer.response.proxy_status = ProxyRefusal(easy, code, transfer.response.status);
  if (transfer.response.proxy_status != 0) {
    transfer.response.failure = HttpFailure::kProxy;
    transfer.response.failure_text = "status " + std::to_string(transfer.response.proxy_status);
  }
  return std::move(transfer.response);
}

std::string OriginOf(const std::string& text) {
  const Url url(text);
  const std::string scheme = absl::AsciiStrToLower(url.Get(CURLUPART_SCHEME));
  if (scheme != "http" && scheme != "https") {
    throw InvalidArgument("\"" + WithoutUser(text) + "\" is neither an http nor an https address");
  }
  return scheme + "://" + absl::AsciiStrToLower(url.Get(CURLUPART_HOST)) + ":" +
         url.Get(CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

std::string WithoutUser(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  // A password may hold any sign. So all before the last @ goes, also if the address is no good.
  const size_t at = url.rfind('@');
  return at == std::string::npos || at < begin ? url : url.substr(0, begin) + url.substr(at + 1);
}

std::string ResolveLocation(const std::string& text, const std::string& location) {
  Url url(text);
  url.Set(location);
  return url.Get(CURLUPART_URL);
}

}  // namespace lathe
