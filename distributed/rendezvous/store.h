// The rendezvous store, by which the processes of a job find each other: a small key-value store
// over TCP that rank 0 serves.
//
//   StoreServer server("127.0.0.1", 29500, "job");               // rank 0
//   Store store("127.0.0.1", 29500, "job", std::chrono::seconds(60));  // every rank
//   store.Set("address/1", "10.0.0.2:4711");
//   std::string address = store.Get("address/1", std::chrono::seconds(60)).value();
//
// It is not for gradients, nor for open networks: the job's name keeps jobs apart but is no secret.
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
  // Listens at `host`, an address or a name of this machine, and at `port`, as Listen does. Throws
  // `port 29500 is taken by process 123 (python3)`, or says that `host` is not of this machine.
  StoreServer(const std::string& host, int port, std::string job);
  // Cuts off clients that still wait.
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

  // The key where the server puts the name of the first client that went without a goodbye. For
  // each such client it also sets "gone/NAME".
  static constexpr char kGone[] = "gone";
  // The key of the server's address by which the first client from another machine has reached it.
  static constexpr char kReachedAt[] = "reached at";

  // Tries again, for `timeout` in all, until the server is there and greets. Calls `on_wait`, which
  // may throw, between two tries. A client with a name is missed (kGone) if it goes without Leave.
  // Throws Unavailable, with the address and the time waited, if nobody listens there. It does so,
  // too, if the listener says nothing or closes the connection without a word. Throws
  // FailedPrecondition if the server belongs to another job or is not Lathe's.
  Store(const std::string& host, int port, const std::string& job, Timeout timeout,
        std::string_view name = "", const std::function<void()>& on_wait = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // All calls throw Unavailable when the server is gone. They throw DeadlineExceeded when an answer
  // takes longer than the time that the server was asked to wait plus the patience (30 s at first).
  // The server is asked nothing more after that.
  void Set(std::string_view key, std::string_view value);
  // Waits until somebody has set the key. Returns nullopt if that takes longer than `timeout`.
  std::optional<std::string> Get(std::string_view key, Timeout timeout);
  // Waits until all the keys are set, for `timeout` at most, and returns their values; nullopt for
  // a key that nobody has set by then. Few messages carry all of it: each holds up to 1 MiB.
  std::vector<std::optional<std::string>> GetSeveral(const std::vector<std::string>& keys,
                                                     Timeout timeout);
  // Waits likewise. Returns the places in `keys` of those that are missing. No value travels.
  std::vector<size_t> Await(const std::vector<std::string>& keys, Timeout timeout);
  // Adds to a counter, 0 at first, and returns the sum. No two that add 1 get the same.
  int64_t Add(std::string_view key, int64_t delta);
  // Sets these keys and says goodbye: from now on nobody misses this client. All goes out at once,
  // so a server that is late to answer gets it even if this call throws.
  void Leave(const std::vector<std::pair<std::string, std::string>>& words = {});
  void SetPatience(Timeout patience);
  // Ends the call that another thread is in, and all later ones, as if the server were gone.
  void BreakOff();
  // Returns this machine's address on the connection to the server. If that is the loopback,
  // returns the address by which other machines have reached the server, if any has.
  std::string local_host();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
