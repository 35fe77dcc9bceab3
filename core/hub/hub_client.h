// Asks a Hub about models: which commit a branch is, which files there are, and where their bytes
// lie. Facts: the protocol that huggingface_hub speaks.
//
//   HubClient client(ReadHubSettings({}), "google-bert/bert-base-uncased");
//   auto metadata = client.FindFile("main", "config.json");
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/hub/http/http.h"
#include "lathe/core/hub/hub_settings.h"

namespace lathe {

// The detail (Error::detail) of an error for which the network or the server is to blame. Files
// that are in the cache can be used all the same.
struct HubOutOfReach {
  bool has_answered = false;  // before that the Hub has told something of the model
};
// The detail of an error that says that the Hub doesn't give us the whole model. It is gone,
// private or gated, or a part of the commit is missing or can't be read. Here, too, files that are
// in the cache can be used.
struct HubRefused {};

struct HubFile {
  std::string commit;    // that the revision is
  bool exists = true;    // otherwise the members below are empty
  std::string etag;      // the blob's name, which is a hash of its contents
  std::string location;  // an address of the bytes, which may lie on another host
  int64_t size = 0;
};

struct HubListing {
  std::string commit = {};
  std::vector<std::string> files = {};
  int status = 200;      // of the answer
  bool is_given = true;  // false: the server lists no files
};

class HubClient {
 public:
  // How often a request is made, in all, that the cache can't do without.
  static constexpr int kAttempts = 6;

  // Makes no request.
  HubClient(HubSettings settings, std::string model);

  const HubSettings& settings() const { return settings_; }
  const std::string& model() const { return model_; }
  // Returns the settings' endpoint without a user's name and password, for messages.
  const std::string& shown_endpoint() const { return endpoint_; }

  // Asks for a file's metadata. Throws if there is no such model or revision, or if the Hub doesn't
  // show it to us. With `attempts` above 1 tries again if the network fails, or the server does.
  // Mirrors may lack a Hub's headers: if the revision is a commit, their 404 is about the file. It
  // gives no commit then.
  HubFile FindFile(const std::string& revision, const std::string& file, int attempts);
  // Returns all files of the model. Mirrors may lack this part of the protocol: answers with 400,
  // 404, 405, 410, 501 or a redirect that don't come from a Hub give no list. An answer with 200
  // that is no JSON gives none, either. Throws for others.
  HubListing List(const std::string& revision);
  // Returns the address at which the file is asked for.
  std::string FileUrl(const std::string& revision, const std::string& file) const;
  // Returns the request that asks for a file's metadata.
  HttpRequest MetadataRequest(const std::string& revision, const std::string& file) const;

  // Sends a request, and follows redirects that lead to a model's present name: relative ones, and
  // those to the same origin from an answer without a commit. Follows others, which lead to the
  // bytes, only if `to_bytes`. The token goes to the Hub's own host only.
  HttpResponse Send(HttpRequest request, bool to_bytes, HttpSink* sink = nullptr);
  // Returns true if the same request may succeed later.
  static bool IsTransient(const HttpResponse& response);
  // Sleeps after the attempt `attempt` of `attempts`: longer each time, or as long as the server
  // asks for. If that takes a second or more, and the settings show waits, says so on standard
  // error.
  void WaitBefore(int attempt, int attempts, const HttpResponse& response) const;
  // Returns the error that an answer, or the lack of one, means. `file` was asked for; if it is
  // empty, the list of files. The error names the server that was asked last.
  Error ErrorOf(const HttpResponse& response, const std::string& revision,
                const std::string& file) const;
  // Returns the address of the server that was asked last, for messages: that of the Hub, or of
  // another host to which it has led. Paths and queries are left out, because some are signed.
  std::string ShownHost(const HttpResponse& response) const;

 private:
  HttpResponse SendOften(const HttpRequest& request, int attempts);
  // Returns true if the answer is that of another host than the Hub's.
  bool IsElsewhere(const HttpResponse& response) const;
  Error NoAnswer(const HttpResponse& response) const;
  Error NoAccess(const HttpResponse& response) const;
  // Returns the error of an answer by another host, which knows nothing of models and tokens.
  Error RefusedElsewhere(const HttpResponse& response, const std::string& file) const;

  HubSettings settings_;
  std::string model_;
  std::string endpoint_;       // as messages have it
  std::string origin_;         // of the endpoint
  bool has_answered_ = false;  // about the model
  HttpClient http_;
};

}  // namespace lathe
