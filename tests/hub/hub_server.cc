#include "lathe/tests/hub/hub_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

constexpr char kDefaultCommit[] = "1111111111111111111111111111111111111111";

// Returns the commit of a revision, or "" if there is no such revision.
std::string CommitOf(const HubServerModel& model, const std::string& revision) {
  if (model.revisions.empty()) {
    return revision == "main" || revision == kDefaultCommit ? kDefaultCommit : "";
  }
  for (const auto& [name, commit] : model.revisions) {
    if (name == revision || commit == revision) return commit;
  }
  return "";
}

const HubFault* Find(const std::vector<HubFault>& faults, HubFault::Kind kind) {
  for (const HubFault& fault : faults) {
    if (fault.kind == kind) return &fault;
  }
  return nullptr;
}

}  // namespace

struct HubServer::Answer {
  int status = 200;
  std::vector<std::string> headers;
  std::string body;
};

// A socket, perhaps with TLS on it.
struct HubServer::Connection {
  int fd = -1;
  SSL* ssl = nullptr;
  std::string buffered;

  long Read(char* data, size_t size) {
    return ssl != nullptr ? SSL_read(ssl, data, static_cast<int>(size))
                          : static_cast<long>(recv(fd, data, size, 0));
  }
  bool Write(const char* data, size_t size) {
    while (size > 0) {
      const long sent = ssl != nullptr ? SSL_write(ssl, data, static_cast<int>(size))
                                       : static_cast<long>(send(fd, data, size, MSG_NOSIGNAL));
      if (sent <= 0) return false;
      data += sent;
      size -= static_cast<size_t>(sent);
    }
    return true;
  }
};

HubServer::HubServer(const Options& options) : options_(options) {
  std::signal(SIGPIPE, SIG_IGN);
  if (!options_.certificate.empty()) {
    SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_file(context, options_.certificate.c_str(), SSL_FILETYPE_PEM) !=
            1 ||
        SSL_CTX_use_PrivateKey_file(context, options_.key.c_str(), SSL_FILETYPE_PEM) != 1) {
      throw std::runtime_error("the certificate can't be used");
    }
    tls_ = context;
  }
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(options_.port));
  socklen_t length = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("the test server can't listen");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

HubServer::~HubServer() {
  over_ = true;
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  {
    const std::lock_guard lock(mutex_);
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  if (tls_ != nullptr) SSL_CTX_free(static_cast<SSL_CTX*>(tls_));
}

std::string HubServer::url() const {
  return (tls_ != nullptr ? "https://" : "http://") + options_.host + ":" + std::to_string(port_);
}

void HubServer::Add(const std::string& name, HubServerModel model) {
  for (const auto& [path, file] : model.files) {
    if (file.lfs) {
      (options_.cdn != nullptr ? options_.cdn : this)->AddStored(LfsEtag(file.bytes), file.bytes);
    }
  }
  const std::lock_guard lock(mutex_);
  models_[name] = std::move(model);
}

void HubServer::AddStored(const std::string& etag, const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  stored_[etag] = bytes;
}

void HubServer::Fail(HubFault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}

void HubServer::ClearFaults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

std::vector<HubRequest> HubServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

int HubServer::Count(const std::string& method, const std::string& part) const {
  int count = 0;
  for (const HubRequest& request : requests()) {
    count += request.method == method && request.target.find(part) != std::string::npos;
  }
  return count;
}

void HubServer::ForgetRequests() {
  const std::lock_guard lock(mutex_);
  requests_.clear();
}

void HubServer::Accept() {
  while (!over_) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    const std::lock_guard lock(mutex_);
    open_.push_back(fd);
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void HubServer::Serve(int fd) {
  Connection connection;
  connection.fd = fd;
  if (tls_ != nullptr) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.tls_delay));
    connection.ssl = SSL_new(static_cast<SSL_CTX*>(tls_));
    SSL_set_fd(connection.ssl, fd);
  }
  if (connection.ssl == nullptr || SSL_accept(connection.ssl) == 1) {
    while (!over_ && ServeOne(connection)) {
    }
  }
  if (connection.ssl != nullptr) SSL_free(connection.ssl);
  const std::lock_guard lock(mutex_);
  std::erase(open_, fd);
  close(fd);
}

bool HubServer::ServeOne(Connection& connection) {
  size_t end;
  while ((end = connection.buffered.find("\r\n\r\n")) == std::string::npos) {
    char data[4096];
    const long got = connection.Read(data, sizeof data);
    if (got <= 0) return false;
    connection.buffered.append(data, static_cast<size_t>(got));
  }
  std::istringstream head(connection.buffered.substr(0, end));
  connection.buffered.erase(0, end + 4);
  HubRequest request;
  std::string version;
  head >> request.method >> request.target >> version;
  if (const size_t scheme = request.target.find("://"); scheme < request.target.find('/', 0)) {
    // A client that takes this server for its proxy names the host, too.
    request.target.erase(0, request.target.find('/', scheme + 3));
  }
  std::string line;
  std::getline(head, line);
  while (std::getline(head, line)) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    std::string value = line.substr(colon + 2);
    while (!value.empty() && value.back() == '\r') value.pop_back();
    request.headers[name] = value;
  }
  std::vector<HubFault> faults;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    faults = TakeFaults(request);
  }
  bool keep = true;
  Answer answer = AnswerTo(request);
  ApplyFaults(faults, answer);
  CutToRange(request, faults, answer);
  Send(connection, request, answer, faults, &keep);
  return keep;
}

std::vector<HubFault> HubServer::TakeFaults(const HubRequest& request) {
  std::vector<HubFault> taken;
  for (HubFault& fault : faults_) {
    if (fault.times == 0 || request.target.find(fault.path) == std::string::npos ||
        (!fault.method.empty() && fault.method != request.method)) {
      continue;
    }
    if (fault.times > 0) --fault.times;
    taken.push_back(fault);
    break;
  }
  return taken;
}

bool HubServer::MaySee(const HubServerModel& model, const HubRequest& request,
                       Answer* refusal) const {
  if (model.token.empty()) return true;
  const auto given = request.headers.find("authorization");
  if (given != request.headers.end() && given->second == "Bearer " + model.token) return true;
  *refusal = {401, {}, ""};
  refusal->headers = {std::string("X-Error-Code: ") + (model.gated ? "GatedRepo" : "RepoNotFound"),
                      "X-Error-Message: Invalid username or password."};
  if (model.gated && given != request.headers.end()) refusal->status = 403;
  return false;
}

HubServer::Answer HubServer::AnswerTo(const HubRequest& request) {
  const std::lock_guard lock(mutex_);
  const std::string& target = request.target;
  if (target.starts_with("/stored/")) {
    const auto found = stored_.find(target.substr(8, target.find('?') - 8));
    if (found == stored_.end()) return {404, {}, ""};
    return {200, {"Accept-Ranges: bytes"}, found->second};
  }
  std::string name, revision, file;
  const bool list = target.starts_with("/api/models/");
  const size_t at = list ? target.find("/revision/") : target.find("/resolve/");
  if (at == std::string::npos) return {404, {}, ""};
  if (list) {
    name = target.substr(12, at - 12);
    revision = PercentDecoded(target.substr(at + 10));
  } else {
    name = target.substr(1, at - 1);
    const size_t slash = std::min(target.find('/', at + 9), target.size());
    revision = PercentDecoded(target.substr(at + 9, slash - at - 9));
    file = slash < target.size() ? PercentDecoded(target.substr(slash + 1)) : "";
  }
  const auto model = models_.find(name);
  if (model == models_.end()) return {404, {"X-Error-Code: RepoNotFound"}, ""};
  if (const std::string& now = model->second.moved_to; !now.empty()) {
    std::string path = (list ? "/api/models/" : "/") + now + target.substr(at);
    if (model->second.location == HubServerModel::kAddress) path = url() + path;
    if (model->second.location == HubServerModel::kFromHere) {
      path.erase(0, 1);
      for (auto i = std::count(target.begin(), target.end(), '/'); i > 1; --i) path = "../" + path;
    }
    return {307, {"Location: " + path}, ""};
  }
  Answer refusal;
  if (!MaySee(model->second, request, &refusal)) return refusal;
  return list ? AnswerList(model->second, revision)
              : AnswerFile(request, model->second, revision, file);
}

HubServer::Answer HubServer::AnswerList(const HubServerModel& model, const std::string& revision) {
  const std::string commit = CommitOf(model, revision);
  if (commit.empty()) return {404, {"X-Error-Code: RevisionNotFound"}, ""};
  nlohmann::json json = {{"sha", commit}, {"siblings", nlohmann::json::array()}};
  for (const auto& [path, file] : model.files) json["siblings"].push_back({{"rfilename", path}});
  return {200, {"Content-Type: application/json"}, DumpJson(json)};
}

HubServer::Answer HubServer::AnswerFile(const HubRequest& request, const HubServerModel& model,
                                        const std::string& revision, const std::string& file) {
  const std::string commit = CommitOf(model, revision);
  if (commit.empty()) return {404, {"X-Error-Code: RevisionNotFound"}, ""};
  const auto found = model.files.find(file);
  if (found == model.files.end()) {
    return {404, {"X-Error-Code: EntryNotFound", "X-Repo-Commit: " + commit}, ""};
  }
  const std::string& bytes = found->second.bytes;
  if (!found->second.lfs) {
    return {200, {"X-Repo-Commit: " + commit, "ETag: \"" + GitEtag(bytes) + "\""}, bytes};
  }
  const std::string etag = LfsEtag(bytes);
  const HubServer& host = options_.cdn != nullptr ? *options_.cdn : *this;
  return {302,
          {"X-Repo-Commit: " + commit, "X-Linked-Etag: \"" + etag + "\"",
           "X-Linked-Size: " + std::to_string(bytes.size()), "ETag: \"of the redirect\"",
           "Location: " + host.url() + "/stored/" + etag + "?signature=abc"},
          request.method == "HEAD" ? "" : "Found. Redirecting."};
}

void HubServer::ApplyFaults(const std::vector<HubFault>& faults, Answer& answer) {
  if (const HubFault* fault = Find(faults, HubFault::kStatus)) {
    answer = {fault->status, fault->headers, fault->text.empty() ? "an error" : fault->text};
  }
  if (const HubFault* fault = Find(faults, HubFault::kRedirect)) {
    answer = {307, {"Location: " + fault->text}, ""};
  }
  if (const HubFault* fault = Find(faults, HubFault::kWrongList)) answer.body = fault->text;
  const auto drop = [&](const char* begin) {
    std::erase_if(answer.headers, [&](const std::string& h) { return h.starts_with(begin); });
  };
  if (Find(faults, HubFault::kNoCommit)) drop("X-Repo-Commit");
  if (Find(faults, HubFault::kPlain404) && answer.status == 404) answer.headers.clear();
  if (const HubFault* fault = Find(faults, HubFault::kWrongEtag)) {
    drop("ETag");
    drop("X-Linked-Etag");
    answer.headers.push_back("ETag: \"" + fault->text + "\"");
  }
  if (const HubFault* fault = Find(faults, HubFault::kWrongBytes)) {
    if (fault->at < static_cast<int64_t>(answer.body.size())) answer.body[fault->at] ^= 1;
  }
  if (const HubFault* fault = Find(faults, HubFault::kShort)) {
    answer.body.resize(answer.body.size() - std::min<size_t>(fault->at, answer.body.size()));
  }
  if (const HubFault* fault = Find(faults, HubFault::kLong)) {
    answer.body.append(static_cast<size_t>(fault->at), 'x');
  }
}

// Answers with the part of the file that the request asks for.
void HubServer::CutToRange(const HubRequest& request, const std::vector<HubFault>& faults,
                           Answer& answer) {
  const auto range = request.headers.find("range");
  if (range != request.headers.end() && answer.status == 200 && request.method == "GET" &&
      !Find(faults, HubFault::kIgnoreRange)) {
    const size_t total = answer.body.size();
    size_t first = std::stoull(range->second.substr(6));
    if (first >= total) {
      answer = {416, {"Content-Range: bytes */" + std::to_string(total)}, ""};
    } else {
      if (Find(faults, HubFault::kWrongRange)) first = first / 2;
      answer.status = 206;
      answer.headers.push_back("Content-Range: bytes " + std::to_string(first) + "-" +
                               std::to_string(total - 1) + "/" + std::to_string(total));
      answer.body.erase(0, first);
    }
  }
}

void HubServer::Send(Connection& connection, const HubRequest& request, const Answer& answer,
                     const std::vector<HubFault>& faults, bool* keep) {
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " Text\r\n";
  while (Find(faults, HubFault::kHeaders) && !over_) {
    head += "X-A: b\r\n";
    if (!connection.Write(head.data(), head.size())) break;
    head.clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const std::string& header : answer.headers) head += header + "\r\n";
  head += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n\r\n";
  if (!connection.Write(head.data(), head.size())) *keep = false;
  if (!*keep || request.method == "HEAD") return;
  const HubFault* const cut = Find(faults, HubFault::kCut);
  const HubFault* const stall = Find(faults, HubFault::kStall);
  size_t size = answer.body.size();
  if (cut != nullptr) size = std::min<size_t>(size, cut->at);
  if (stall != nullptr) size = std::min<size_t>(size, stall->at);
  for (size_t sent = 0; sent < size && *keep;) {
    const int64_t rate = rate_;
    const size_t piece = rate > 0 ? std::min<size_t>(size - sent, rate) : size - sent;
    if (!connection.Write(answer.body.data() + sent, piece)) *keep = false;
    sent += piece;
    if (rate > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (stall != nullptr) {
    char data;
    connection.Read(&data, 1);  // until the client gives up
  }
  if (cut != nullptr || stall != nullptr) *keep = false;
}

}  // namespace lathe
