#include "lathe/core/hub/hub_client.h"

#include <absl/status/status.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "lathe/core/hub/hub_names.h"
#include "lathe/core/hub/transfer_progress.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

constexpr int kMostRedirects = 10;
constexpr double kLongestDelay = 8;    // first delays
constexpr double kLongestListing = 6;  // timeouts of downloads

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Returns true if a redirect leads to a model's present name, and false if it leads to the bytes of
// a file. Bytes may lie on the same origin, but then the answer itself names the commit.
bool LeadsToName(const HttpResponse& redirect, bool same_origin) {
  const std::string location = redirect.Header("location");
  const size_t delimiter = location.find_first_of(":/?#");
  const bool has_scheme = delimiter != std::string::npos && location[delimiter] == ':';
  const bool relative = !has_scheme && !location.starts_with("//");
  return relative || (same_origin && redirect.Header("x-repo-commit").empty());
}

// Returns true for the answer of a server that doesn't have what was asked for, such as a mirror
// that holds only files. A Hub gives a code with its errors. An answer that may change later, or
// that refuses access, isn't one of these.
bool LacksFunction(const HttpResponse& response) {
  switch (response.status) {
    case 400:
    case 404:
    case 405:
    case 410:
    case 501:
      break;
    default:
      if (!IsRedirect(response.status)) return false;
  }
  return response.Header("x-error-code").empty();
}

// Throws if a server with encryption leads to one without.
void CheckEncryption(const std::string& origin, const std::string& next_origin) {
  if (!origin.starts_with("https:") || next_origin.starts_with("https:")) return;
  throw Error(absl::StatusCode::kPermissionDenied,
              origin + " leads to an address without encryption, " + next_origin,
              "the server is set up wrongly; do not use it");
}

// Removes what HTTP puts round an etag: quotes, and a mark for weak ones.
std::string PlainEtag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return etag;
}

// Returns the seconds that the server asks to wait, or 0. `RateLimit: "api";r=0;t=55` says 55.
double AskedDelay(const HttpResponse& response) {
  double seconds = 0;
  if (absl::SimpleAtod(response.Header("retry-after"), &seconds)) return seconds;
  if (response.status != 429) return 0;
  const std::string limit = response.Header("ratelimit");
  const size_t at = limit.find("t=");
  if (at == std::string::npos) return 0;
  const size_t end = limit.find_first_not_of("0123456789", at + 2);
  return absl::SimpleAtod(limit.substr(at + 2, end == std::string::npos ? end : end - at - 2),
                          &seconds)
             ? seconds
             : 0;
}

// Returns what to do about a proxy that refuses.
std::string HintAboutProxy(const HttpResponse& response) {
  const std::string variable = response.origin.starts_with("http:") ? "http_proxy" : "https_proxy";
  if (response.proxy_status == 407) {
    return "give the proxy's user and password in " + variable +
           ", as http://USER:PASSWORD@HOST:PORT";
  }
  return "the proxy in " + variable +
         " may not allow this host, or may want a user and a password, as "
         "http://USER:PASSWORD@HOST:PORT; hosts in no_proxy need none";
}

}  // namespace

HubClient::HubClient(HubSettings settings, std::string model)
    : settings_(std::move(settings)),
      model_(std::move(model)),
      endpoint_(WithoutUser(settings_.endpoint)),
      origin_(OriginOf(settings_.endpoint)) {}

std::string HubClient::FileUrl(const std::string& revision, const std::string& file) const {
  return settings_.endpoint + "/" + model_ + "/resolve/" + PercentEncoded(revision, false) + "/" +
         PercentEncoded(file, true);
}

HttpRequest HubClient::MetadataRequest(const std::string& revision, const std::string& file) const {
  return {.method = "HEAD",
          .url = FileUrl(revision, file),
          .headers = {"Accept-Encoding: identity"},
          .connect_timeout = settings_.etag_timeout,
          .total_timeout = settings_.etag_timeout,
          .stall_timeout = settings_.etag_timeout};
}

HttpResponse HubClient::Send(HttpRequest request, bool to_bytes, HttpSink* sink) {
  const std::vector<std::string> headers = request.headers;
  for (int redirects = 0;; ++redirects) {
    const std::string origin = OriginOf(request.url);
    request.headers = headers;
    if (origin == origin_ && !settings_.token.empty()) {
      request.headers.push_back("Authorization: Bearer " + settings_.token);
    }
    HttpResponse response = http_.Send(request, sink);
    response.origin = origin;
    const std::string location = response.Header("location");
    if (response.failure != HttpFailure::kNone || !IsRedirect(response.status) ||
        location.empty()) {
      return response;
    }
    const std::string next = ResolveLocation(request.url, location);
    const std::string next_origin = OriginOf(next);
    if (!to_bytes && !LeadsToName(response, origin == next_origin)) return response;
    CheckEncryption(origin, next_origin);
    if (redirects == kMostRedirects) {
      throw Error(absl::StatusCode::kUnavailable,
                  endpoint_ + ": more than 10 redirects, the last to " + next_origin)
          .WithDetail(HubOutOfReach{has_answered_});
    }
    request.url = next;
  }
}

bool HubClient::IsTransient(const HttpResponse& response) {
  switch (response.failure) {
    case HttpFailure::kNone:
      return response.status == 408 || response.status == 429 ||
             (response.status >= 500 && response.status != 501);
    case HttpFailure::kProxy:
    case HttpFailure::kTls:
    case HttpFailure::kTooLarge:
    case HttpFailure::kOther:
      return false;
    default:
      return true;
  }
}

void HubClient::WaitBefore(int attempt, int attempts, const HttpResponse& response) const {
  double delay = settings_.first_delay;
  for (int i = 1; i < attempt; ++i) delay *= 2;
  delay = std::min(delay, kLongestDelay * settings_.first_delay);
  delay = std::max(delay, std::min(AskedDelay(response), settings_.longest_asked_delay));
  if (delay >= 1 && settings_.show_waits) {
    std::string why = response.failure_text;
    if (response.failure == HttpFailure::kNone) {
      why = response.status / 100 == 2 ? "the answer ended early"
                                       : "status " + std::to_string(response.status);
    }
    PrintNote("note: " + model_ + " at " + ShownHost(response) + ": " + why + "; trying again in " +
              std::to_string(std::lround(delay)) + " s (try " + std::to_string(attempt + 1) +
              " of " + std::to_string(attempts) + ")");
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(delay));
}

HttpResponse HubClient::SendOften(const HttpRequest& request, int attempts) {
  for (int attempt = 1;; ++attempt) {
    HttpResponse response = Send(request, false);
    // A name that can't be resolved, or a port where nobody listens, rarely gets better at once.
    const bool hopeless =
        response.failure == HttpFailure::kResolve || response.failure == HttpFailure::kConnect;
    const int most = hopeless ? std::min(attempts, 2) : attempts;
    if (!IsTransient(response) || attempt >= most) return response;
    WaitBefore(attempt, most, response);
  }
}

HubFile HubClient::FindFile(const std::string& revision, const std::string& file, int attempts) {
  const HttpRequest request = MetadataRequest(revision, file);
  const HttpResponse response = SendOften(request, attempts);
  HubFile found;
  found.commit = response.Header("x-repo-commit");
  const std::string code = response.Header("x-error-code");
  const bool names_commit = IsCommit(found.commit) || IsCommit(revision);
  if (response.failure == HttpFailure::kNone && response.status == 404 &&
      (code == "EntryNotFound" || (code.empty() && names_commit))) {
    found.exists = false;
    has_answered_ = true;
    return found;
  }
  const bool redirect = IsRedirect(response.status);
  if (response.failure != HttpFailure::kNone || (response.status != 200 && !redirect)) {
    throw ErrorOf(response, revision, file);
  }
  const std::string linked = response.Header("x-linked-etag");
  found.etag = PlainEtag(linked.empty() ? response.Header("etag") : linked);
  std::string size = response.Header("x-linked-size");
  if (size.empty() && !redirect) size = response.Header("content-length");
  if (!IsCommit(found.commit) || found.etag.empty() || !absl::SimpleAtoi(size, &found.size) ||
      found.size < 0) {
    throw Error(absl::StatusCode::kUnavailable,
                endpoint_ + ": the answer for " + file +
                    " lacks the commit, the etag or the size, so no Hub answers there",
                "check HF_ENDPOINT, and the proxy if there is one")
        .WithDetail(HubOutOfReach{has_answered_});
  }
  has_answered_ = true;
  found.location =
      redirect ? ResolveLocation(request.url, response.Header("location")) : request.url;
  CheckEncryption(origin_, OriginOf(found.location));
  return found;
}

HubListing HubClient::List(const std::string& revision) {
  const HttpResponse response =
      SendOften({.url = settings_.endpoint + "/api/models/" + model_ + "/revision/" +
                        PercentEncoded(revision, false),
                 .connect_timeout = settings_.etag_timeout,
                 .total_timeout = kLongestListing * settings_.download_timeout,
                 .stall_timeout = settings_.download_timeout},
                5);
  if (response.failure != HttpFailure::kNone || response.status != 200) {
    if (response.failure == HttpFailure::kNone && LacksFunction(response)) {
      return {.status = response.status, .is_given = false};
    }
    throw ErrorOf(response, revision, "");
  }
  // A mirror may answer with a page of its own where it has nothing.
  if (!nlohmann::json::accept(response.body)) return {.is_given = false};
  try {
    if (const auto flaw = FindJsonFlaw(response.body)) {
      throw InvalidArgument("the list of files: " + flaw->problem, flaw->hint)
          .WithDetail(HubRefused{});
    }
    const nlohmann::json json = ParseJson(response.body);
    HubListing listing;
    listing.commit = json.at("sha").get<std::string>();
    for (const nlohmann::json& sibling : json.at("siblings")) {
      listing.files.push_back(sibling.at("rfilename").get<std::string>());
    }
    std::sort(listing.files.begin(), listing.files.end());
    has_answered_ = true;
    return listing;
  } catch (const nlohmann::json::exception&) {
    throw DataLoss(endpoint_ + ": the list of the files of " + model_ + " is no such list",
                   "check HF_ENDPOINT, and the proxy if there is one")
        .WithDetail(HubRefused{});
  }
}

bool HubClient::IsElsewhere(const HttpResponse& response) const {
  return !response.origin.empty() && response.origin != origin_;
}

std::string HubClient::ShownHost(const HttpResponse& response) const {
  if (!IsElsewhere(response)) return endpoint_;
  std::string host = response.origin;
  const std::string usual = host.starts_with("https:") ? ":443" : ":80";
  if (host.ends_with(usual)) host.resize(host.size() - usual.size());
  return host;
}

Error HubClient::NoAnswer(const HttpResponse& response) const {
  std::string what, hint =
                        "check the network and the proxy (https_proxy), or set HF_HUB_OFFLINE=1 to "
                        "use the cache alone";
  switch (response.failure) {
    case HttpFailure::kResolve:
      what = "the host's name can't be resolved";
      break;
    case HttpFailure::kConnect:
      what = "no connection";
      break;
    case HttpFailure::kProxy:
      what = "the proxy refuses";
      hint = HintAboutProxy(response);
      break;
    case HttpFailure::kTls:
      what = "the server's certificate or its encryption is not accepted";
      hint =
          "check the clock and the package ca-certificates; SSL_CERT_FILE names a file with "
          "another authority's certificate";
      break;
    case HttpFailure::kTimeout:
      what = "no answer in time";
      hint += "; HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT are the seconds to wait";
      break;
    case HttpFailure::kTooLarge:
      what = "the answer is too long";
      hint = "check HF_ENDPOINT, and the proxy if there is one";
      break;
    default:
      what = "the connection broke off";
  }
  const std::string model = IsElsewhere(response) ? model_ + " at " : "";
  return Error(absl::StatusCode::kUnavailable,
               model + ShownHost(response) + ": " + what + " (" + response.failure_text + ")", hint)
      .WithDetail(HubOutOfReach{has_answered_});
}

Error HubClient::NoAccess(const HttpResponse& response) const {
  const std::string where = model_ + " at " + endpoint_;
  const std::string give =
      "with " + OptionName("token") + ", HF_TOKEN or the file " + settings_.token_file;
  if (response.Header("x-error-code") == "GatedRepo") {
    return Error(absl::StatusCode::kPermissionDenied,
                 where + ": the model is gated" +
                     (settings_.token.empty() ? "" : ", and this token has no access to it"),
                 "ask for access at " + endpoint_ + "/" + model_ + ", then give your token " + give)
        .WithDetail(HubRefused{});
  }
  if (settings_.token.empty()) {
    return NotFound(where + ": no such model, or it is private",
                    "check the name, of which there is no folder either; for a private model give "
                    "a token " +
                        give)
        .WithDetail(HubRefused{});
  }
  return NotFound(where + ": no such model, or this token may not read it",
                  "check the name and the token; a token is given " + give)
      .WithDetail(HubRefused{});
}

Error HubClient::RefusedElsewhere(const HttpResponse& response, const std::string& file) const {
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  std::string what = "the server can't answer, status " + std::to_string(response.status) +
                     ", for " + file,
              hint = "try again later; a firewall or proxy may be at fault, too";
  if (response.status == 401 || response.status == 403) {
    code = absl::StatusCode::kPermissionDenied;
    what = "access denied, status " + std::to_string(response.status) + ", for " + file;
    hint = "check the firewall or proxy: the Hub keeps large files on this host";
  } else if (response.status == 404) {
    code = absl::StatusCode::kNotFound;
    what = "has no " + file + ", although the Hub leads there";
  } else if (response.status == 429) {
    what = "too many requests, status 429";
    hint = "wait some minutes";
  }
  return Error(code, model_ + " at " + ShownHost(response) + ": " + what, hint)
      .WithDetail(HubOutOfReach{has_answered_});
}

Error HubClient::ErrorOf(const HttpResponse& response, const std::string& revision,
                         const std::string& file) const {
  if (response.failure != HttpFailure::kNone) return NoAnswer(response);
  if (IsElsewhere(response)) return RefusedElsewhere(response, file);
  const std::string what = file.empty() ? "the list of files" : file;
  const std::string code = response.Header("x-error-code");
  const std::string where = model_ + " at " + endpoint_;
  if (code == "RevisionNotFound" && revision != settings_.revision) {
    return NotFound(where + ": no revision \"" + revision + "\", which \"" + settings_.revision +
                        "\" should be",
                    "try again")
        .WithDetail(HubRefused{});
  }
  if (code == "RevisionNotFound") {
    return NotFound(where + ": no revision \"" + revision + "\"",
                    "a revision is a branch, a tag or a whole commit");
  }
  if (code == "GatedRepo" || code == "RepoNotFound" || response.status == 401) {
    return NoAccess(response);
  }
  std::string message = response.Header("x-error-message");
  message = message.empty() ? "" : " (" + message + ")";
  const std::string status = "status " + std::to_string(response.status) + message;
  if (response.status == 404) {
    return NotFound(where + ": " + (file.empty() ? "gives no list of files" : "has no " + file) +
                        " in revision \"" + revision + "\"" + message,
                    "check the name and the revision")
        .WithDetail(HubRefused{});
  }
  if (response.status == 403) {
    // A Hub says why. Something before it may not.
    return Error(absl::StatusCode::kPermissionDenied, where + ": access denied" + message,
                 message.empty() && code.empty() ? "check the token, and the firewall or proxy"
                                                 : "check the token")
        .WithDetail(HubRefused{});
  }
  if (response.status == 429) {
    return Error(absl::StatusCode::kUnavailable, where + ": too many requests, " + status,
                 "wait some minutes; with a token more requests are allowed")
        .WithDetail(HubOutOfReach{has_answered_});
  }
  const Error error(absl::StatusCode::kUnavailable,
                    where + ": the server can't answer, " + status + ", for " + what,
                    "try again later, or set HF_HUB_OFFLINE=1 to use the cache alone");
  const bool may_change = response.status >= 500 || response.status == 408;
  return may_change ? error.WithDetail(HubOutOfReach{has_answered_})
                    : error.WithDetail(HubRefused{});
}

}  // namespace lathe
