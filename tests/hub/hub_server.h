// A Hub for tests: a server in this process that speaks the Hub's protocol, by http or https. It
// fails in the ways in which networks and servers fail.
//
//   HubServer cdn, hub({.cdn = &cdn});
//   hub.Add("owner/name", {.files = {{"config.json", {"{}"}}, {"model.safetensors", {bytes,
//   true}}}}); setenv("HF_ENDPOINT", hub.url().c_str(), 1); hub.Fail({.path = "config.json", .kind
//   = HubFault::kStatus, .status = 503});
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lathe {

struct HubServerFile {
  std::string bytes;
  bool lfs = false;  // its etag is a SHA-256, and its bytes lie on another host
};

struct HubServerModel {
  std::map<std::string, HubServerFile> files = {};
  // The commits of branches and tags; empty: "main" is one of 40 digits "1".
  std::map<std::string, std::string> revisions = {};
  std::string token = {};     // without it the model is not shown
  bool gated = false;         // with another token than this one the model is gated
  std::string moved_to = {};  // the model has this name now: a redirect leads there
  // How the redirect's Location is written.
  enum Location {
    kPath,      // "/owner/name/..."
    kAddress,   // "http://127.0.0.1:1234/owner/name/..."
    kFromHere,  // "../../owner/name/..."
  } location = kPath;
};

struct HubFault {
  std::string path;         // is part of the request's target
  std::string method = {};  // "" means any
  int times = 1;            // how many requests fail; -1: all
  enum Kind {
    kStatus,       // answers with `status`, the headers and perhaps `text`
    kCut,          // ends the connection after `at` bytes of the body
    kStall,        // sends nothing more after `at` bytes of the body
    kShort,        // announces and sends `at` bytes too few
    kLong,         // announces and sends `at` bytes too many
    kWrongBytes,   // changes the byte `at`
    kIgnoreRange,  // sends the whole file
    kWrongRange,   // sends another range than it was asked for
    kNoCommit,     // leaves out the headers of a Hub
    kPlain404,     // leaves out all headers if a file is not there
    kWrongEtag,    // gives `text` as the file's etag
    kWrongList,    // gives `text` as the list of files
    kRedirect,     // leads to `text`
    kHeaders,      // sends headers without an end
  } kind = kStatus;
  int status = 500;
  int64_t at = 0;
  std::string text = {};
  std::vector<std::string> headers = {};
};

struct HubRequest {
  std::string method, target;
  std::map<std::string, std::string> headers;  // names are lower-case
};

class HubServer {
 public:
  struct Options {
    HubServer* cdn = nullptr;                // the host of large files; null: this one
    std::string certificate = {}, key = {};  // PEM files; without them plain http
    std::string host = "127.0.0.1";          // as the address names it
    int port = 0;                            // 0: any that is free
    double tls_delay = 0;                    // seconds before each handshake with TLS
  };
  HubServer() : HubServer(Options{}) {}
  explicit HubServer(const Options& options);
  ~HubServer();
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  void Add(const std::string& name, HubServerModel model);
  // Each request meets at most one fault: the first that fits and is left.
  void Fail(HubFault fault);
  void ClearFaults();
  // Sends at most so many bytes in a millisecond of each connection; 0: as fast as it can.
  void SetRate(int64_t bytes_per_ms) { rate_ = bytes_per_ms; }

  std::string url() const;
  int port() const { return port_; }
  std::vector<HubRequest> requests() const;
  // Returns how many requests of the method have this in their target.
  int Count(const std::string& method, const std::string& part) const;
  void ForgetRequests();

 private:
  struct Connection;
  struct Answer;
  void Accept();
  void Serve(int fd);
  bool ServeOne(Connection& connection);
  Answer AnswerTo(const HubRequest& request);
  Answer AnswerFile(const HubRequest& request, const HubServerModel& model,
                    const std::string& revision, const std::string& file);
  Answer AnswerList(const HubServerModel& model, const std::string& revision);
  std::vector<HubFault> TakeFaults(const HubRequest& request);
  static void ApplyFaults(const std::vector<HubFault>& faults, Answer& answer);
  static void CutToRange(const HubRequest& request, const std::vector<HubFault>& faults,
                         Answer& answer);
  void Send(Connection& connection, const HubRequest& request, const Answer& answer,
            const std::vector<HubFault>& faults, bool* keep);
  bool MaySee(const HubServerModel& model, const HubRequest& request, Answer* refusal) const;
  void AddStored(const std::string& etag, const std::string& bytes);

  Options options_;
  int listener_ = -1, port_ = 0;
  void* tls_ = nullptr;
  std::atomic<bool> over_ = false;
  std::atomic<int64_t> rate_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, HubServerModel> models_;
  std::map<std::string, std::string> stored_;  // by etag, for the hosts of large files
  std::vector<HubFault> faults_;
  std::vector<HubRequest> requests_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// Returns the etags that the Hub gives: SHA-256, and git's SHA-1 of a blob.
std::string LfsEtag(const std::string& bytes);
std::string GitEtag(const std::string& bytes);

// Writes a new certificate for these names, and its key, into the folder: cert.pem, key.pem.
// Returns false if this machine has no `openssl`.
bool MakeCertificate(const std::string& folder,
                     const std::string& names = "DNS:localhost,IP:127.0.0.1");

// Returns the text with %XX replaced by the byte that it stands for.
std::string PercentDecoded(const std::string& text);

// Returns `size` bytes that depend on the seed.
std::string RandomBytes(int64_t size, unsigned int seed);

}  // namespace lathe
