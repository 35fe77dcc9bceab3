#include "lathe/distributed/groups/gloo_connect.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "lathe/distributed/groups/gloo_device.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Contexts = std::vector<std::shared_ptr<gloo::Context>>;
using Buffer = ActiveTransfers::Buffer;

// A buffer of Gloo's whose waits throw once its transfers are broken off.
class WatchedBuffer : public Buffer {
 public:
  WatchedBuffer(std::unique_ptr<Buffer> buffer, std::shared_ptr<ActiveTransfers> transfers)
      : Buffer(buffer->ptr, buffer->size),
        buffer_(std::move(buffer)),
        transfers_(std::move(transfers)) {
    transfers_->Add(buffer_.get());
  }
  ~WatchedBuffer() override { transfers_->Remove(buffer_.get()); }

  bool waitRecv(int* rank, Milliseconds timeout) override {
    return ThrowUnless(buffer_->waitRecv(rank, timeout));
  }
  bool waitSend(int* rank, Milliseconds timeout) override {
    return ThrowUnless(buffer_->waitSend(rank, timeout));
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }
  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  static bool ThrowUnless(bool done) {
    if (!done) throw gloo::IoException("broken off");
    return done;
  }
  const std::unique_ptr<Buffer> buffer_;
  const std::shared_ptr<ActiveTransfers> transfers_;
};

// A transport of Gloo's with such buffers.
class WatchedTransport : public gloo::transport::Context {
 public:
  WatchedTransport(gloo::transport::Device& device, const GlooMembership& membership,
                   Milliseconds timeout, std::shared_ptr<ActiveTransfers> transfers)
      : gloo::transport::Context(membership.member, membership.num_members),
        transport_(device.createContext(membership.member, membership.num_members)),
        transfers_(std::move(transfers)) {
    setTimeout(timeout);
    transport_->setTimeout(timeout);
  }
  std::unique_ptr<gloo::transport::Pair>& getPair(int other) override {
    return transport_->getPair(other);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int other) override {
    return transport_->createPair(other);
  }
  std::unique_ptr<Buffer> createUnboundBuffer(void* data, size_t bytes) override {
    return std::make_unique<WatchedBuffer>(transport_->createUnboundBuffer(data, bytes),
                                           transfers_);
  }

 private:
  const std::shared_ptr<gloo::transport::Context> transport_;
  const std::shared_ptr<ActiveTransfers> transfers_;
};

class ConnectedContext : public gloo::Context {
 public:
  ConnectedContext(std::shared_ptr<gloo::transport::Device> device,
                   std::shared_ptr<WatchedTransport> transport, Milliseconds timeout)
      : gloo::Context(transport->rank, transport->size) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
    setTimeout(timeout);
  }
};

// The rest of ConnectGloo, in a thread of its own.
Contexts Connect(const std::vector<GlooMembership>& memberships, const std::string& host,
                 Store& store, Milliseconds timeout,
                 const std::shared_ptr<ActiveTransfers>& transfers,
                 const std::atomic<bool>& given_up) {
  const auto device = MakeGlooDevice(host);
  std::vector<std::shared_ptr<WatchedTransport>> transports;
  const auto for_each_pair = [&](const auto& what) {
    for (size_t i = 0; i < memberships.size(); ++i) {
      const auto& [name, self, size] = memberships[i];
      for (int other = 0; other < size; ++other) {
        if (other != self) what(*transports[i], name, self, other);
      }
    }
  };
  for (const GlooMembership& membership : memberships) {
    transports.push_back(
        std::make_shared<WatchedTransport>(*device, membership, timeout, transfers));
  }
  for_each_pair([&](WatchedTransport& transport, const std::string& name, int self, int other) {
    const std::vector<char> address = transport.createPair(other)->address().bytes();
    store.Set(GlooAddressKey(name, self, other), {address.data(), address.size()});
  });
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for_each_pair([&](WatchedTransport& transport, const std::string& name, int self, int other) {
    std::optional<std::string> address;
    while (!address) {
      if (given_up || std::chrono::steady_clock::now() >= deadline)
        throw gloo::IoException("no answer while connecting");
      address = store.Get(GlooAddressKey(name, other, self), Milliseconds(500));
    }
    transport.getPair(other)->connect({address->begin(), address->end()});
  });
  Contexts contexts;
  for (const auto& transport : transports)
    contexts.push_back(std::make_shared<ConnectedContext>(device, transport, timeout));
  return contexts;
}

void Abort(Buffer* buffer) {
  buffer->abortWaitSend();
  buffer->abortWaitRecv();
}

}  // namespace

void ActiveTransfers::Add(Buffer* buffer) {
  const std::lock_guard lock(mutex_);
  buffers_.insert(buffer);
  if (broken_off_) Abort(buffer);
}

void ActiveTransfers::Remove(Buffer* buffer) {
  const std::lock_guard lock(mutex_);
  buffers_.erase(buffer);
}

void ActiveTransfers::BreakOff() {
  const std::lock_guard lock(mutex_);
  broken_off_ = true;
  for (Buffer* buffer : buffers_) Abort(buffer);
}

std::string GlooAddressKey(const std::string& name, int from, int to) {
  return "gloo/" + name + "/" + std::to_string(from) + "/" + std::to_string(to);
}

Contexts ConnectGloo(const std::vector<GlooMembership>& memberships, const std::string& host,
                     std::shared_ptr<Store> store, Milliseconds timeout,
                     std::shared_ptr<ActiveTransfers> transfers,
                     const std::function<void()>& on_wait) {
  const auto given_up = std::make_shared<std::atomic<bool>>(false);
  // The thread may outlive this call, so it shares ownership of everything that it uses.
  std::packaged_task<Contexts()> connect([=, store = std::move(store)] {
    return Connect(memberships, host, *store, timeout, transfers, *given_up);
  });
  std::future<Contexts> connected = connect.get_future();
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
