// How the processes of a job find each other: a small key-value store over TCP that rank 0 serves.
//
//   StoreServer server("127.0.0.1", 29500, "job");               // rank 0
//   Store store("127.0.0.1", 29500, "job", std::chrono::seconds(60));  // every rank
//   store.Set("address/1", "10.0.0.2:4711");
//   std::string address = store.Get("address/1", std::chrono::seconds(60)).value();
//
// Not for gradients, and not for open networks: the job's name keeps jobs apart, it is no secret.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lathe {

class StoreServer {
 public:
  // Listens at `host`, an address or a name of this machine, and `port`, 0 for a free one. A name
  // that means the loopback only here stands for all addresses (see Listen). Throws
  // `port 29500 is taken by process 123 (python3)`, or says that `host` is not of this machine.
  StoreServer(const std::string& host, int port, std::string job);
  // Clients that still wait are cut off.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Safe to use from several threads; a call waits for the one before it.
class Store {
 public:
  using Timeout = std::chrono::milliseconds;
  static constexpr size_t kLongestKey = 1024, kLongestValue = 1 << 20;

  // Where the server puts the name of the first client that went without a word. Of each it also
  // sets "gone/NAME".
  static constexpr char kGone[] = "gone";
  // Where it puts its machine's address as the first client found it that came from another one.
  static constexpr char kReachedAt[] = "reached at";

  // Tries again until the server is there and greets, for `timeout` in all. Throws Unavailable with
  // the address and the time waited, be it that nobody listens there or that who does says nothing
  // or closes the connection without a word; FailedPrecondition if the server belongs to another
  // job or is none of Lathe's. A client with a name is missed (kGone) when it goes without Leave.
  // on_wait is called between two tries, and may throw.
  Store(const std::string& host, int port, const std::string& job, Timeout timeout,
        std::string_view name = "", const std::function<void()>& on_wait = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // All throw Unavailable when the server is gone, DeadlineExceeded when it takes longer than the
  // patience (30 s at first) beyond what it was asked to wait; it is asked no more then.
  void Set(std::string_view key, std::string_view value);
  // Waits until somebody has set the key; nullopt if that takes longer than `timeout`.
  std::optional<std::string> Get(std::string_view key, Timeout timeout);
  // Adds to a counter, 0 at first, and returns the sum; no two callers get the same.
  int64_t Add(std::string_view key, int64_t delta);
  // Sets these keys and says goodbye: from now on nobody misses this client. All goes out at once:
  // a server that is late to answer, so that this throws, gets it nevertheless.
  void Leave(const std::vector<std::pair<std::string, std::string>>& words = {});
  void SetPatience(Timeout patience);
  // Ends the call that another thread is in, and all later ones, as if the server were gone.
  void BreakOff();
  // This machine's address: the one on the way to the server or, where that doesn't leave the
  // machine, the one at which others have reached the server by now.
  std::string local_host();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
