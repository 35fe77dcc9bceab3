#include <absl/status/status.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/store.h"
#include "lathe/distributed/rendezvous/store_protocol.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace store_protocol;

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAtOnce(0), kLongestWait = std::chrono::hours(24 * 365);

// A client as the server sees it.
struct Client {
  Socket socket;
  bool greeted = false;
  std::string name;  // "" if nobody misses it
  std::string received, to_send;
  bool is_full = false;  // to_send waits for room in the socket
  // The request that is not answered yet, and its keys; none if there are no keys.
  Kind request = Kind::kGet;
  std::vector<std::string> keys;
  size_t missing = 0;  // how many different ones of the keys nobody has set
  Deadline deadline;
};

Socket Open(int fd, const char* what) {
  if (fd >= 0) return Socket(fd);
  throw Error(absl::ErrnoToStatusCode(errno),
              std::string("[store] ") + what + ": " + std::strerror(errno),
              "let this process open more files (ulimit -n)");
}

}  // namespace

struct StoreServer::Impl {
  Impl(const std::string& host, int wanted_port, std::string job_name)
      : job(std::move(job_name)),
        listener(Listen(host, wanted_port)),
        wake(Open(eventfd(0, EFD_CLOEXEC), "eventfd")),
        poller(Open(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
    Watch(wake.fd(), EPOLLIN, EPOLL_CTL_ADD);
    Watch(listener.fd(), EPOLLIN, EPOLL_CTL_ADD);
    thread = std::thread([this] { Serve(); });
  }
  ~Impl() {
    if (eventfd_write(wake.fd(), 1) != 0) std::terminate();  // the counter can't overflow
    thread.join();
  }

  bool Watch(int fd, uint32_t events, int change) {
    epoll_event event = {};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(poller.fd(), change, fd, &event) == 0;
  }

  void Serve() {
    std::array<epoll_event, 256> events;
    for (;;) {
      const int ready =
          epoll_wait(poller.fd(), events.data(), static_cast<int>(events.size()), TimeToWait());
      for (const epoll_event& event : std::span(events).first(std::max(ready, 0))) {
        if (event.data.fd == wake.fd()) return;
        if (event.data.fd == listener.fd()) Accept();
        const auto client = clients.find(event.data.fd);
        if (client != clients.end() && !Handle(client->second, event.events)) Remove(client);
      }
      AnswerLateOnes();
    }
  }

  // Returns the milliseconds until the first wait is over.
  int TimeToWait() const {
    Milliseconds time = std::chrono::hours(1);
    if (!deadlines.empty()) time = std::min(time, TimeLeft(deadlines.begin()->first));
    return static_cast<int>(time.count());
  }

  void Accept() {
    for (;;) {
      Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) break;
      const int fd = socket.fd();
      if (Watch(fd, EPOLLIN, EPOLL_CTL_ADD)) clients[fd].socket = std::move(socket);
    }
    // Perhaps too many files are open. A client that wants to be accepted is there after a pause.
    if (errno != EAGAIN && errno != EINTR) std::this_thread::sleep_for(Milliseconds(10));
  }

  void Remove(std::unordered_map<int, Client>::iterator client) {
    EndWait(client->second);
    const std::string name = std::move(client->second.name);
    clients.erase(client);  // closes the connection, which epoll then forgets
    if (name.empty()) return;
    SetOnce(Store::kGone, name);
    SetOnce(std::string(Store::kGone) + "/" + name, "");
  }

  // Returns false if the client is gone or is not Lathe's.
  bool Handle(Client& client, uint32_t events) {
    if ((events & EPOLLOUT) != 0) SendSome(client);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      char buffer[65536];
      const ssize_t got = recv(client.socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (got > 0) client.received.append(buffer, static_cast<size_t>(got));
    }
    size_t done = 0;
    while (client.received.size() - done >= sizeof(Header)) {
      const std::string_view rest = std::string_view(client.received).substr(done);
      Header request;
      std::memcpy(&request, rest.data(), sizeof request);
      if (request.magic != kMagic || request.key_size > Store::kLongestKey ||
          request.value_size > Store::kLongestValue) {
        return false;
      }
      const size_t size = sizeof request + request.key_size + request.value_size;
      if (rest.size() < size) break;
      if (!client.greeted && request.kind != Kind::kHello) return false;
      const std::string key(rest.substr(sizeof request, request.key_size));
      std::string value(rest.substr(sizeof request + request.key_size, request.value_size));
      done += size;
      if (!Do(client, request, key, std::move(value))) return false;
    }
    client.received.erase(0, done);
    return true;
  }

  // Returns false if the request is malformed.
  bool Do(Client& client, const Header& request, const std::string& key, std::string value) {
    switch (request.kind) {
      case Kind::kHello:
        client.greeted = value == job;
        if (client.greeted) client.name = key;  // nobody misses a stranger
        if (client.greeted && !IsOnLoopback(client.socket))
          SetOnce(Store::kReachedAt, LocalHost(client.socket));
        Answer(client, client.greeted ? Kind::kOk : Kind::kOtherJob);
        return true;
      case Kind::kSet:
        values[key] = std::move(value);
        AnswerThoseWhoWaitFor(key);
        Answer(client, Kind::kOk);
        return true;
      case Kind::kAdd:
        // A client's mistake must not end the server, so a sum that is too large wraps.
        counters[key] += static_cast<uint64_t>(request.number);
        Answer(client, Kind::kOk, static_cast<int64_t>(counters[key]));
        return true;
      case Kind::kBye:
        client.name.clear();
        Answer(client, Kind::kOk);
        return true;
      case Kind::kGet:
      case Kind::kAwait: {
        const auto list = ParseList(value);
        std::vector<std::string> keys;
        if (!list || list->empty()) return false;
        for (const auto& text : *list) {
          if (!text) return false;
          keys.push_back(*text);
        }
        BeginWait(client, request, std::move(keys));
        return true;
      }
      default:
        return true;  // an unknown request gets no answer
    }
  }

  // --- requests that wait ---

  void BeginWait(Client& client, const Header& request, std::vector<std::string> keys) {
    EndWait(client);
    client.request = request.kind;
    client.keys = std::move(keys);
    client.missing = 0;
    for (const std::string& key : client.keys) {
      if (!values.contains(key) && waiting[key].insert(&client).second) ++client.missing;
    }
    client.deadline =
        Clock::now() + std::clamp(Milliseconds(request.number), kAtOnce, kLongestWait);
    deadlines.emplace(client.deadline, &client);
    // A client that asks without waiting gets the answer at once.
    if (client.missing == 0 || request.number <= 0) AnswerWait(client);
  }

  // Forgets the request, if there is one.
  void EndWait(Client& client) {
    if (client.keys.empty()) return;
    deadlines.erase({client.deadline, &client});
    for (const std::string& key : std::exchange(client.keys, {})) {
      const auto found = client.missing > 0 ? waiting.find(key) : waiting.end();
      if (found == waiting.end()) continue;
      found->second.erase(&client);
      if (found->second.empty()) waiting.erase(found);
    }
  }

  void AnswerThoseWhoWaitFor(const std::string& key) {
    const auto found = waiting.find(key);
    if (found == waiting.end()) return;
    const std::unordered_set<Client*> all = std::move(found->second);
    waiting.erase(found);
    for (Client* client : all) {
      if (--client->missing == 0) AnswerWait(*client);
    }
  }

  void AnswerLateOnes() {
    const Clock::time_point now = Clock::now();
    while (!deadlines.empty() && deadlines.begin()->first <= now)
      AnswerWait(*deadlines.begin()->second);
  }

  void AnswerWait(Client& client) {
    std::string reply;
    for (const std::string& key : client.keys) {
      const auto found = values.find(key);
      std::optional<std::string_view> text;
      if (found != values.end())
        text = client.request == Kind::kAwait ? std::string_view() : found->second;
      if (reply.size() + kSizeBytes + text.value_or("").size() > kLongestReply) break;
      AppendText(reply, text);
    }
    EndWait(client);
    Answer(client, Kind::kOk, 0, reply);
  }

  void SetOnce(const std::string& key, const std::string& value) {
    if (values.emplace(key, value).second) AnswerThoseWhoWaitFor(key);
  }

  void Answer(Client& client, Kind kind, int64_t number = 0, std::string_view value = "") {
    AppendMessage(client.to_send, kind, "", value, number);
    if (!client.is_full) SendSome(client);
  }

  // Sends as much as the socket takes. A client that has gone is removed when epoll tells so.
  void SendSome(Client& client) {
    const int fd = client.socket.fd();
    const ssize_t sent =
        send(fd, client.to_send.data(), client.to_send.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) client.to_send.erase(0, static_cast<size_t>(sent));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) client.to_send.clear();
    const bool is_full = !client.to_send.empty();
    if (std::exchange(client.is_full, is_full) != is_full)
      Watch(fd, is_full ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
  }

  std::string job;
  Socket listener, wake, poller;
  std::unordered_map<int, Client> clients;  // by their sockets
  std::unordered_map<std::string, std::string> values;
  std::unordered_map<std::string, uint64_t> counters;
  // Who waits for a key that nobody has set, and until when.
  std::unordered_map<std::string, std::unordered_set<Client*>> waiting;
  std::set<std::pair<Deadline, Client*>> deadlines;
  std::thread thread;
};

StoreServer::StoreServer(const std::string& host, int port, std::string job)
    : impl_(std::make_unique<Impl>(host, port, std::move(job))) {}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return LocalPort(impl_->listener); }

}  // namespace lathe
