// One HTTP request at a time, by libcurl. Redirects are answers like others: the caller decides
// where to go next, and which headers may go there.
//
//   HttpClient client;
//   HttpResponse response = client.Send({.method = "HEAD", .url = "https://huggingface.co/..."});
//   if (response.failure == HttpFailure::kNone && response.status == 200) ...
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lathe {

// Why there is no complete answer.
enum class HttpFailure {
  kNone,
  kResolve,   // the host's name is unknown here
  kConnect,   // nobody listens there, or the network has no route to it
  kProxy,     // the proxy refuses; see proxy_status
  kTls,       // the server can't prove who it is, or speaks no TLS
  kTimeout,   // no answer, or no more of it, within the time allowed
  kBroken,    // the connection ended in the middle
  kTooLarge,  // the body that no sink takes has more than 16 MiB
  kOther,     // such as an address that is none
};

struct HttpRequest {
  std::string method = "GET";  // or "HEAD"
  std::string url;
  std::vector<std::string> headers = {};  // "Name: value"
  double connect_timeout = 10;            // seconds
  double total_timeout = 0;               // seconds; 0: as long as bytes arrive
  // Seconds from the connection until all headers are there, then without a byte.
  double stall_timeout = 10;
};

struct HttpResponse {
  int status = 0;                              // 0: no answer
  std::map<std::string, std::string> headers;  // of the last answer; names are lower-case
  std::string body;                            // if there was no sink
  HttpFailure failure = HttpFailure::kNone;
  std::string failure_text;  // libcurl's words for it
  int proxy_status = 0;      // of a proxy's refusal: 407 asks for a user and a password
  std::string origin = {};   // OriginOf the last address, which HubClient fills in

  // Returns the header's value, or "".
  std::string Header(const std::string& lower_case_name) const;
};

// Takes the body of an answer with a status from 200 to 299. Its functions may throw lathe::Error,
// which Send then throws.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  // Is called before the first byte, also if there is none. The response has no body yet.
  virtual void Begin(const HttpResponse& response) = 0;
  virtual void Write(const char* data, size_t size) = 0;
};

// Keeps connections open between requests. Not for several threads at once.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Without a sink the body goes to `response.body`. The transfer ends if it has more than 16 MiB.
  // With a sink, the body of an answer whose status is no success is not read. Proxies are those of
  // libcurl's environment variables. The server's certificate is always checked: against the file
  // in SSL_CERT_FILE, CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE, else against the system's.
  HttpResponse Send(const HttpRequest& request, HttpSink* sink = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns "scheme://host:port" in lower case; throws InvalidArgument for what is no http or https
// address.
std::string OriginOf(const std::string& url);
// Returns the address without a user's name and password, so that it can be printed.
std::string WithoutUser(const std::string& url);
// Returns the absolute address that `location` means in an answer to a request for `url`.
std::string ResolveLocation(const std::string& url, const std::string& location);

}  // namespace lathe
