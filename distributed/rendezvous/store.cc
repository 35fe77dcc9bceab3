#include "lathe/distributed/rendezvous/store.h"

#include <absl/status/status.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

// A message is a header and two texts, in the byte order of x86. Client and server are of one
// build; a sender of another magic number is not Lathe's.
constexpr uint32_t kMagic = 0x4c544831;                            // "LTH1"
constexpr int64_t kLongestWait = int64_t{1000} * 3600 * 24 * 365;  // milliseconds
enum class Op : uint32_t { kHello = 1, kSet, kGet, kAdd, kBye };
struct Request {
  uint32_t magic = kMagic;
  Op op;
  uint32_t key_size, value_size;
  int64_t number;  // kGet: milliseconds to wait; kAdd: the summand
};
enum class Status : uint32_t { kOk = 1, kTimedOut, kOtherJob };
struct Reply {
  uint32_t magic = kMagic;
  Status status;
  int64_t number;
  uint32_t value_size, unused = 0;
};

// A client as the server sees it.
struct Client {
  Socket socket;
  bool greeted = false;
  std::string name;  // "" if nobody misses it
  std::string received, to_send;
  std::optional<std::string> waits_for;  // the key of an unanswered Get
  Deadline deadline;
};

void Answer(Client& client, Status status, int64_t number = 0, std::string_view value = "") {
  const Reply reply = {
      .status = status, .number = number, .value_size = static_cast<uint32_t>(value.size())};
  client.to_send.append(reinterpret_cast<const char*>(&reply), sizeof reply);
  client.to_send.append(value);
}

}  // namespace

struct StoreServer::Impl {
  Impl(const std::string& host, int wanted_port, std::string job_name)
      : job(std::move(job_name)),
        listener(Listen(host, wanted_port)),
        wake(eventfd(0, EFD_CLOEXEC)) {
    thread = std::thread([this] { Serve(); });
  }
  ~Impl() {
    const uint64_t one = 1;
    if (write(wake.fd(), &one, sizeof one) < 0) std::terminate();  // the counter can't overflow
    thread.join();
  }

  void Serve() {
    for (;;) {
      std::vector<pollfd> ready = {{wake.fd(), POLLIN, 0}, {listener.fd(), POLLIN, 0}};
      Deadline first = Clock::now() + std::chrono::hours(1);
      for (const Client& client : clients) {
        const bool writes = !client.to_send.empty();
        ready.push_back(
            {client.socket.fd(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
        if (client.waits_for) first = std::min(first, client.deadline);
      }
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(first - Clock::now()).count();
      poll(ready.data(), ready.size(), static_cast<int>(std::max<int64_t>(left + 1, 0)));
      if (ready[0].revents != 0) return;
      auto client = clients.begin();
      for (size_t i = 2; i < ready.size(); ++i) {
        const bool stays = ready[i].revents == 0 || Handle(*client, ready[i].revents);
        if (!stays && !client->name.empty()) {
          values.emplace(Store::kGone, client->name);
          values.emplace(std::string(Store::kGone) + "/" + client->name, "");
        }
        client = stays ? std::next(client) : clients.erase(client);
      }
      if (ready[1].revents != 0) Accept();
      AnswerWaiting();
    }
  }

  void Accept() {
    const int fd = accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) clients.emplace_back().socket = Socket(fd);
    // Perhaps too many files are open. A client that wants to be accepted is still there after the
    // pause.
    if (fd < 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  // Returns false if the client is gone or is not Lathe's.
  bool Handle(Client& client, short events) {
    if ((events & POLLOUT) != 0) {
      const ssize_t sent = send(client.socket.fd(), client.to_send.data(), client.to_send.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) client.to_send.erase(0, static_cast<size_t>(sent));
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    }
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
      char buffer[65536];
      const ssize_t got = recv(client.socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (got > 0) client.received.append(buffer, static_cast<size_t>(got));
    }
    while (client.received.size() >= sizeof(Request)) {
      Request request;
      std::memcpy(&request, client.received.data(), sizeof request);
      if (request.magic != kMagic || request.key_size > Store::kLongestKey ||
          request.value_size > Store::kLongestValue) {
        return false;
      }
      const size_t size = sizeof request + request.key_size + request.value_size;
      if (client.received.size() < size) break;
      const std::string key = client.received.substr(sizeof request, request.key_size);
      const std::string value =
          client.received.substr(sizeof request + request.key_size, request.value_size);
      client.received.erase(0, size);
      if (!client.greeted && request.op != Op::kHello) return false;
      Do(client, request, key, value);
    }
    return true;
  }

  void Do(Client& client, const Request& request, const std::string& key,
          const std::string& value) {
    switch (request.op) {
      case Op::kHello:
        client.greeted = value == job;
        if (client.greeted) client.name = key;  // nobody misses a stranger
        if (client.greeted && !IsOnLoopback(client.socket)) {
          values.emplace(Store::kReachedAt, LocalHost(client.socket));
        }
        return Answer(client, client.greeted ? Status::kOk : Status::kOtherJob);
      case Op::kSet:
        values[key] = value;
        return Answer(client, Status::kOk);
      case Op::kGet:
        client.waits_for = key;
        client.deadline = Clock::now() + std::chrono::milliseconds(
                                             std::clamp<int64_t>(request.number, 0, kLongestWait));
        return;
      case Op::kAdd:
        // A client's mistake must not end the server, so a sum that is too large wraps.
        return Answer(client, Status::kOk,
                      counters[key] = static_cast<int64_t>(static_cast<uint64_t>(counters[key]) +
                                                           static_cast<uint64_t>(request.number)));
      case Op::kBye:
        client.name.clear();
        return Answer(client, Status::kOk);
    }
  }

  void AnswerWaiting() {
    for (Client& client : clients) {
      if (!client.waits_for) continue;
      if (const auto found = values.find(*client.waits_for); found != values.end()) {
        Answer(client, Status::kOk, 0, found->second);
        client.waits_for.reset();
      } else if (Clock::now() >= client.deadline) {
        Answer(client, Status::kTimedOut);
        client.waits_for.reset();
      }
    }
  }

  std::string job;
  Socket listener, wake;
  std::list<Client> clients;
  std::map<std::string, std::string> values;
  std::map<std::string, int64_t> counters;
  std::thread thread;
};

StoreServer::StoreServer(const std::string& host, int port, std::string job)
    : impl_(std::make_unique<Impl>(host, port, std::move(job))) {}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return LocalPort(impl_->listener); }

struct Store::Impl {
  Error Gone(Deadline deadline) {
    if (Clock::now() >= deadline) {
      timed_out = true;
      return Error(absl::StatusCode::kDeadlineExceeded, where + ": rank 0 does not answer",
                   "look at what rank 0 printed last; it may hang");
    }
    return Error(absl::StatusCode::kUnavailable, where + ": the connection to rank 0 is lost",
                 "look at what rank 0 printed last; it may have ended");
  }

  static std::string Message(Op op, std::string_view key, std::string_view value, int64_t number) {
    Check(key.size() <= kLongestKey && value.size() <= kLongestValue, "store", "key \"",
          key.substr(0, 40), "\" or its value of ", value.size(), " bytes is too long");
    const Request request = {.op = op,
                             .key_size = static_cast<uint32_t>(key.size()),
                             .value_size = static_cast<uint32_t>(value.size()),
                             .number = number};
    std::string message(reinterpret_cast<const char*>(&request), sizeof request);
    return message.append(key).append(value);
  }

  std::pair<Reply, std::string> Ask(Op op, std::string_view key, std::string_view value,
                                    int64_t number, Timeout wait = Timeout(0)) {
    const std::string message = Message(op, key, value, number);
    const std::lock_guard lock(mutex);
    // The server may still answer the request that timed out, and nobody could tell which answer
    // belongs to which.
    if (timed_out) throw Gone(Clock::now());
    const Deadline deadline = Clock::now() + wait + patience;
    if (!SendAll(socket, message.data(), message.size(), deadline)) throw Gone(deadline);
    return Receive(deadline);
  }

  std::pair<Reply, std::string> Receive(Deadline deadline) {
    Reply reply;
    reply.magic = 0;
    if (!ReceiveAll(socket, &reply.magic, sizeof reply.magic, deadline)) {
      if (reply.magic != 0 && Clock::now() < deadline) throw NotOurs();  // a few bytes, and closed
      throw Gone(deadline);
    }
    // Checked before the rest is read: another program may say less than a reply and then wait.
    if (reply.magic != kMagic) throw NotOurs();
    char* rest = reinterpret_cast<char*>(&reply) + sizeof reply.magic;
    if (!ReceiveAll(socket, rest, sizeof reply - sizeof reply.magic, deadline))
      throw Gone(deadline);
    if (reply.value_size > kLongestValue) throw NotOurs();
    std::string answer(reply.value_size, '\0');
    if (!ReceiveAll(socket, answer.data(), answer.size(), deadline)) throw Gone(deadline);
    return {reply, std::move(answer)};
  }

  // Waits for the answer until `deadline`. Returns nullopt if the other side closes the connection
  // without a word.
  std::optional<Reply> Greet(const std::string& job, std::string_view name, Deadline deadline) {
    const Clock::time_point start = Clock::now();
    const Timeout usual =
        std::exchange(patience, std::max(std::chrono::ceil<Timeout>(deadline - start), Timeout(0)));
    try {
      const Reply reply = Ask(Op::kHello, name, job, 0).first;
      patience = usual;
      return reply;
    } catch (const Error& e) {
      patience = usual;
      if (e.code() == absl::StatusCode::kUnavailable) return std::nullopt;
      if (e.code() != absl::StatusCode::kDeadlineExceeded) throw;
    }
    throw Error(absl::StatusCode::kUnavailable,
                where + " accepts connections but did not answer within " +
                    SecondsText(Clock::now() - start) + ": rank 0 hangs, or it is another program",
                "look at what rank 0 does, or choose another port with MASTER_PORT");
  }

  // Tries again if rank 0 ends before it answers: it may be that of the job before.
  Reply ConnectAndGreet(const std::string& host, int port, const std::string& job,
                        std::string_view name, Timeout timeout,
                        const std::function<void()>& on_wait) {
    const Clock::time_point start = Clock::now();
    const Deadline deadline = start + timeout;
    constexpr Timeout kMoment(1000), kPause(50);
    for (;;) {
      socket = Connect(host, port, deadline, on_wait);
      // A server that comes at the last moment gets a moment to answer in.
      const Deadline moment = Clock::now() + std::min(timeout, kMoment);
      if (const auto reply = Greet(job, name, std::max(deadline, moment))) return *reply;
      if (Clock::now() + kPause >= deadline) break;
      std::this_thread::sleep_for(kPause);
      if (on_wait) on_wait();
    }
    throw Error(absl::StatusCode::kUnavailable,
                where + " has accepted connections and closed them without an answer, for " +
                    SecondsText(Clock::now() - start) +
                    ": rank 0 has ended, or it is another program",
                "look at what rank 0 printed last, or choose another port with MASTER_PORT");
  }

  Error NotOurs() const {
    return Error(absl::StatusCode::kFailedPrecondition,
                 where + ": what answers there is not rank 0 of a Lathe job",
                 "choose another port with MASTER_PORT");
  }

  std::string where;
  Socket socket;
  std::mutex mutex;
  Timeout patience = std::chrono::seconds(30);
  bool timed_out = false;
};

Store::Store(const std::string& host, int port, const std::string& job, Timeout timeout,
             std::string_view name, const std::function<void()>& on_wait)
    : impl_(std::make_unique<Impl>()) {
  impl_->where = AddressText(host, port);
  const Reply reply = impl_->ConnectAndGreet(host, port, job, name, timeout, on_wait);
  if (reply.status == Status::kOtherJob) {
    throw Error(absl::StatusCode::kFailedPrecondition,
                impl_->where + ": rank 0 of another job listens there",
                "choose another port with MASTER_PORT, or end the other job");
  }
}
Store::~Store() = default;

void Store::SetPatience(Timeout patience) {
  const std::lock_guard lock(impl_->mutex);
  impl_->patience = patience;
}

void Store::BreakOff() { shutdown(impl_->socket.fd(), SHUT_RDWR); }

void Store::Leave(const std::vector<std::pair<std::string, std::string>>& words) {
  std::string message;
  for (const auto& [key, value] : words) message += Impl::Message(Op::kSet, key, value, 0);
  message += Impl::Message(Op::kBye, "", "", 0);
  const std::lock_guard lock(impl_->mutex);
  const Deadline deadline = Clock::now() + impl_->patience;
  const bool sent = SendAll(impl_->socket, message.data(), message.size(), deadline);
  if (!sent || impl_->timed_out) throw impl_->Gone(impl_->timed_out ? Clock::now() : deadline);
  for (size_t i = 0; i <= words.size(); ++i) impl_->Receive(deadline);
}

std::string Store::local_host() {
  const std::string host = LocalHost(impl_->socket);
  if (!IsOnLoopback(impl_->socket)) return host;
  return Get(kReachedAt, Timeout(0)).value_or(host);
}

void Store::Set(std::string_view key, std::string_view value) {
  impl_->Ask(Op::kSet, key, value, 0);
}

std::optional<std::string> Store::Get(std::string_view key, Timeout timeout) {
  auto [reply, value] = impl_->Ask(Op::kGet, key, "", timeout.count(), timeout);
  if (reply.status == Status::kTimedOut) return std::nullopt;
  return std::move(value);
}

int64_t Store::Add(std::string_view key, int64_t delta) {
  return impl_->Ask(Op::kAdd, key, "", delta).first.number;
}

}  // namespace lathe
