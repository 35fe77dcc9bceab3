#include "lathe/distributed/rendezvous/store.h"

#include <absl/status/status.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/store_protocol.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace store_protocol;

}  // namespace

struct Store::Impl {
  Error Gone(Deadline deadline) {
    timed_out = timed_out || Clock::now() >= deadline;
    if (timed_out) {
      return Error(absl::StatusCode::kDeadlineExceeded, where + ": rank 0 does not answer",
                   "look at what rank 0 printed last; it may hang");
    }
    return Error(absl::StatusCode::kUnavailable, where + ": the connection to rank 0 is lost",
                 "look at what rank 0 printed last; it may have ended");
  }

  static void CheckSizes(std::string_view key, std::string_view value) {
    Check(key.size() <= kLongestKey && value.size() <= kLongestValue, "store", "key \"",
          key.substr(0, 40), "\" or its value of ", value.size(), " bytes is too long");
  }

  std::pair<Header, std::string> Ask(Kind kind, std::string_view key, std::string_view value,
                                     int64_t number = 0, Timeout wait = Timeout(0)) {
    CheckSizes(key, value);
    std::string message;
    AppendMessage(message, kind, key, value, number);
    const std::lock_guard lock(mutex);
    // The server may still answer the request that timed out, and nobody could tell the two apart.
    if (timed_out) throw Gone({});
    const Deadline deadline = Clock::now() + wait + patience;
    if (!SendAll(socket, message.data(), message.size(), deadline)) throw Gone(deadline);
    return Receive(deadline);
  }

  std::pair<Header, std::string> Receive(Deadline deadline) {
    Header reply;
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
    if (reply.value_size > kLongestReply) throw NotOurs();
    std::string answer(reply.value_size, '\0');
    if (!ReceiveAll(socket, answer.data(), answer.size(), deadline)) throw Gone(deadline);
    return {reply, std::move(answer)};
  }

  // Waits for the answer until `deadline`. Returns nullopt if the other side closes the connection
  // without a word, or says nothing.
  std::optional<Kind> Greet(const std::string& job, std::string_view name, Deadline deadline) try {
    return Ask(Kind::kHello, name, job, 0, TimeLeft(deadline) - patience).first.kind;
  } catch (const Error& e) {
    if (e.code() != absl::StatusCode::kUnavailable &&
        e.code() != absl::StatusCode::kDeadlineExceeded)
      throw;
    return std::nullopt;
  }

  // Tries again if rank 0 ends before it answers: it may be that of the job before. It also tries
  // again if nothing is said. Another program may have had the port before rank 0 got it, and may
  // keep the connection though it listens no more.
  void ConnectAndGreet(const std::string& host, int port, const std::string& job,
                       std::string_view name, Timeout timeout,
                       const std::function<void()>& on_wait) {
    const Clock::time_point start = Clock::now();
    const Deadline deadline = start + timeout;
    constexpr Timeout kMoment(1000), kPause(50), kLongestSilence(5000);
    for (;;) {
      socket = Connect(host, port, deadline, on_wait);
      timed_out = false;
      // A server that comes at the last moment gets a moment to answer in.
      const Deadline now = Clock::now(), moment = now + std::min(timeout, kMoment);
      // The name comes second. A server that hears the first greeting late, when this client has
      // given up, must not miss it.
      auto reply = Greet(job, "", std::max(std::min(deadline, now + kLongestSilence), moment));
      if (reply == Kind::kOk && !name.empty()) reply = Greet(job, name, std::max(deadline, moment));
      if (reply == Kind::kOtherJob) {
        throw Error(absl::StatusCode::kFailedPrecondition,
                    where + ": rank 0 of another job listens there",
                    "choose another port with MASTER_PORT, or end the other job");
      }
      if (reply) return;
      if (Clock::now() + kPause >= deadline) break;
      std::this_thread::sleep_for(kPause);
      if (on_wait) on_wait();
    }
    const std::string time = SecondsText(Clock::now() - start);
    throw Error(
        absl::StatusCode::kUnavailable,
        where +
            (timed_out ? " accepts connections but did not answer within " + time + ": rank 0 hangs"
                       : " has accepted connections and closed them without an answer, for " +
                             time + ": rank 0 has ended") +
            ", or it is another program",
        std::string("look at what rank 0 ") + (timed_out ? "does" : "printed last") +
            ", or choose another port with MASTER_PORT");
  }

  // Returns the answer for each of the keys. Asks in several messages if one can't hold all of it.
  std::vector<std::optional<std::string>> AskForAll(Kind kind, const std::vector<std::string>& keys,
                                                    Timeout timeout) {
    const Deadline deadline = Clock::now() + timeout;
    for (const std::string& key : keys) CheckSizes(key, "");
    std::vector<std::optional<std::string>> answers;
    while (answers.size() < keys.size()) {
      std::string list;
      size_t end = answers.size();
      for (; end < keys.size() && list.size() + kSizeBytes + keys[end].size() <= kLongestValue;
           ++end)
        AppendText(list, keys[end]);
      const Timeout wait = TimeLeft(deadline);
      auto more = ParseList(Ask(kind, "", list, wait.count(), wait).second);
      if (!more || more->empty() || more->size() > end - answers.size()) throw NotOurs();
      std::move(more->begin(), more->end(), std::back_inserter(answers));
    }
    return answers;
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
  impl_->ConnectAndGreet(host, port, job, name, timeout, on_wait);
}
Store::~Store() = default;

void Store::SetPatience(Timeout patience) {
  const std::lock_guard lock(impl_->mutex);
  impl_->patience = patience;
}

void Store::BreakOff() { shutdown(impl_->socket.fd(), SHUT_RDWR); }

void Store::Leave(const std::vector<std::pair<std::string, std::string>>& words) {
  std::string message;
  for (const auto& [key, value] : words) {
    Impl::CheckSizes(key, value);
    AppendMessage(message, Kind::kSet, key, value);
  }
  AppendMessage(message, Kind::kBye, "", "");
  const std::lock_guard lock(impl_->mutex);
  const Deadline deadline = Clock::now() + impl_->patience;
  const bool sent = SendAll(impl_->socket, message.data(), message.size(), deadline);
  if (!sent || impl_->timed_out) throw impl_->Gone(deadline);
  for (size_t i = 0; i <= words.size(); ++i) impl_->Receive(deadline);
}

std::string Store::local_host() {
  const std::string host = LocalHost(impl_->socket);
  return IsOnLoopback(impl_->socket) ? Get(kReachedAt, Timeout(0)).value_or(host) : host;
}

void Store::Set(std::string_view key, std::string_view value) {
  impl_->Ask(Kind::kSet, key, value);
}

std::optional<std::string> Store::Get(std::string_view key, Timeout timeout) {
  return std::move(GetSeveral({std::string(key)}, timeout).front());
}

std::vector<std::optional<std::string>> Store::GetSeveral(const std::vector<std::string>& keys,
                                                          Timeout timeout) {
  return impl_->AskForAll(Kind::kGet, keys, timeout);
}

std::vector<size_t> Store::Await(const std::vector<std::string>& keys, Timeout timeout) {
  const auto answers = impl_->AskForAll(Kind::kAwait, keys, timeout);
  std::vector<size_t> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!answers[i]) missing.push_back(i);
  }
  return missing;
}

int64_t Store::Add(std::string_view key, int64_t delta) {
  return impl_->Ask(Kind::kAdd, key, "", delta).first.number;
}

}  // namespace lathe
