#include "lathe/distributed/groups/gloo_connect.h"

#include <gloo/common/error.h>

#include <atomic>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "lathe/distributed/groups/gloo_device.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using ContextPtr = std::shared_ptr<gloo::rendezvous::Context>;

class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<lathe::Store> store, Milliseconds timeout,
            std::shared_ptr<const std::atomic<bool>> given_up)
      : store_(std::move(store)), timeout_(timeout), given_up_(std::move(given_up)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_->Set(kPrefix + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override { return Wait(key, timeout_); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::vector<std::string> missing;
    for (const std::string& key : keys) missing.push_back(kPrefix + key);
    while (!(missing = store_->Await(missing, Milliseconds(500))).empty()) {
      if (*given_up_ || std::chrono::steady_clock::now() >= deadline)
        throw gloo::IoException("no answer while connecting");
    }
  }

 private:
  static constexpr const char* kPrefix = "gloo/";
  std::vector<char> Wait(const std::string& key, Milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!*given_up_ && std::chrono::steady_clock::now() < deadline) {
      if (const auto value = store_->Get(kPrefix + key, Milliseconds(500)))
        return {value->begin(), value->end()};
    }
    throw gloo::IoException("no answer while connecting");
  }
  const std::shared_ptr<lathe::Store> store_;
  const Milliseconds timeout_;
  const std::shared_ptr<const std::atomic<bool>> given_up_;
};

}  // namespace

ContextPtr ConnectGloo(int rank, int size, const std::string& host, std::shared_ptr<Store> store,
                       Milliseconds timeout, const std::function<void()>& on_wait) {
  const auto given_up = std::make_shared<std::atomic<bool>>(false);
  // The thread may outlive this call, so it shares ownership of everything that it uses.
  std::packaged_task<ContextPtr()> connect(
      [rank, size, host, store = std::move(store), timeout, given_up] {
        auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
        context->setTimeout(timeout);
        GlooStore store_of_gloo(store, timeout, given_up);
        auto device = MakeGlooDevice(host);
        context->connectFullMesh(store_of_gloo, device);
        return context;
      });
  std::future<ContextPtr> connected = connect.get_future();
  std::thread thread(std::move(connect));
  try {
    while (connected.wait_for(Milliseconds(200)) != std::future_status::ready) on_wait();
  } catch (...) {
    *given_up = true;
    thread.detach();
    throw;
  }
  thread.join();
  return connected.get();
}

}  // namespace lathe
