#include "lathe/distributed/gloo_group.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/error.h"
#include "lathe/distributed/local_reduce.h"
#include "lathe/distributed/peer_watch.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;

class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(lathe::Store& store, Milliseconds timeout) : store_(store), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.Set(kPrefix + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override { return Wait(key, timeout_); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    for (const std::string& key : keys) Wait(key, timeout);
  }

 private:
  static constexpr const char* kPrefix = "gloo/";
  std::vector<char> Wait(const std::string& key, Milliseconds timeout) {
    const auto value = store_.Get(kPrefix + key, timeout);
    if (!value) throw gloo::IoException("no answer while connecting");
    return {value->begin(), value->end()};
  }
  lathe::Store& store_;
  Milliseconds timeout_;
};

template <typename T, ReduceOp op>
void Reduce(void* out, const void* a, const void* b, size_t n) {
  T* to = static_cast<T*>(out);
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
#pragma omp simd
  for (size_t i = 0; i < n; ++i) {
    // A NaN is not equal to itself, and stays.
    to[i] = op == ReduceOp::kSum   ? static_cast<T>(x[i] + y[i])
            : op == ReduceOp::kMax ? (x[i] < y[i] || y[i] != y[i] ? y[i] : x[i])
                                   : (y[i] < x[i] || y[i] != y[i] ? y[i] : x[i]);
  }
}

class GlooGroup : public ProcessGroup {
 public:
  GlooGroup(int rank, int size, std::shared_ptr<StoreServer> server, std::shared_ptr<Store> store,
            std::shared_ptr<Store> life, Milliseconds timeout, bool one_machine)
      : ProcessGroup(rank, size),
        timeout_(timeout),
        watch_(rank, size, std::move(server), std::move(store)) {
    watch_.store().SetPatience(timeout);
    signal(SIGPIPE, SIG_IGN);  // a dead peer is reported by the call that needed it
    gloo::transport::tcp::attr attributes;
    attributes.hostname = watch_.store().local_host();
    watch_.Run("connecting", [&] {
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
      context->setTimeout(timeout);
      GlooStore store_of_gloo(watch_.store(), timeout);
      auto device = gloo::transport::tcp::CreateDevice(attributes);
      context->connectFullMesh(store_of_gloo, device);
      context_ = std::move(context);
    });
    watch_.LookAfter(std::move(life), timeout);
    if (!one_machine) return;
    local_ =
        LocalReduce::Connect(rank, size, [this](auto mine, auto all) { AllGather(mine, all); });
  }

  void AllReduce(std::span<float> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<double> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<int64_t> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<BFloat16> data, ReduceOp op) override { AllReduceOf(data, op); }

  void ReduceScatter(std::span<float> data) override { ReduceScatterOf(data); }
  void ReduceScatter(std::span<BFloat16> data) override { ReduceScatterOf(data); }

  void AllGatherStripes(std::span<float> data, const std::vector<ElementRange>& parts) override {
    watch_.Run("all_gather", [&] {
      if (local_ != nullptr) {
        return local_->AllGather(data.data(), parts, sizeof(float), OnWait());
      }
      for (const ElementRange& part : parts) {
        std::vector<Transfer> transfers;
        for (const int other : Others()) {
          transfers.push_back(Send(PartOf(data, Stripe(part, rank(), size())), other));
          transfers.push_back(Receive(PartOf(data, Stripe(part, other, size())), other));
        }
        for (Transfer& transfer : transfers) transfer.Wait(timeout_);
      }
    });
  }

  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    Check(all.size() == mine.size() * static_cast<size_t>(size()), "all_gather", all.size(),
          " bytes for ", size(), " ranks' ", mine.size());
    if (mine.empty()) return;
    watch_.Run("all_gather", [&] {
      gloo::AllgatherOptions options(context_);
      // It is only read.
      options.setInput(reinterpret_cast<char*>(const_cast<std::byte*>(mine.data())), mine.size());
      options.setOutput(reinterpret_cast<char*>(all.data()), all.size());
      gloo::allgather(options);
    });
  }

  void Broadcast(std::span<std::byte> data, int root) override {
    Check(root >= 0 && root < size(), "broadcast", "root ", root, " is not one of ", size(),
          " ranks");
    if (data.empty()) return;
    watch_.Run("broadcast", [&] {
      gloo::BroadcastOptions options(context_);
      options.setRoot(root);
      options.setOutput(reinterpret_cast<char*>(data.data()), data.size());
      gloo::broadcast(options);
    });
  }

  void Barrier() override {
    watch_.Run("barrier", [&] {
      gloo::BarrierOptions options(context_);
      gloo::barrier(options);
    });
  }

  void CheckPeers() override { watch_.CheckPeers(); }
  void SetAlarm(const std::function<void(const Error&)>& alarm) override { watch_.SetAlarm(alarm); }
  void Abandon() override { watch_.Abandon(); }
  void SetPhase(const std::string& phase) override { watch_.SetPhase(phase); }
  void Post(const std::string& key, const std::string& value) override { watch_.Post(key, value); }
  std::string Await(const std::string& key) override { return watch_.Await(key); }

 private:
  // Bytes on their way from one rank to another; none if there are none.
  struct Transfer {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    bool is_send;
    void Wait(Milliseconds timeout) const {
      if (buffer == nullptr) return;
      const bool done = is_send ? buffer->waitSend(timeout) : buffer->waitRecv(timeout);
      if (!done) throw gloo::IoException("broken off");
    }
  };
  static constexpr uint64_t kSlot = uint64_t{0x7f} << 56;  // Gloo's own are below

  Transfer Send(std::span<std::byte> bytes, int to) {
    if (bytes.empty()) return {nullptr, true};
    Transfer transfer = {context_->createUnboundBuffer(bytes.data(), bytes.size()), true};
    transfer.buffer->send(to, kSlot);
    return transfer;
  }
  Transfer Receive(std::span<std::byte> bytes, int from) {
    if (bytes.empty()) return {nullptr, false};
    Transfer transfer = {context_->createUnboundBuffer(bytes.data(), bytes.size()), false};
    transfer.buffer->recv(from, kSlot);
    return transfer;
  }

  template <typename T>
  static std::span<std::byte> PartOf(std::span<T> data, ElementRange part) {
    return std::as_writable_bytes(
        data.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.size())));
  }

  // In ascending order.
  std::vector<int> Others() const {
    std::vector<int> others;
    for (int other = 0; other < size(); ++other)
      if (other != rank()) others.push_back(other);
    return others;
  }

  template <typename T>
  void ReduceScatterOf(std::span<T> data) {
    if (data.empty()) return;
    watch_.Run("reduce_scatter", [&] {
      const auto add = Reduce<T, ReduceOp::kSum>;
      if (local_ != nullptr) {
        return local_->ReduceScatter(data.data(), data.size(), sizeof(T), add, OnWait());
      }
      const ElementRange all = {0, std::ssize(data)}, own = Stripe(all, rank(), size());
      std::vector<Transfer> sent;
      for (const int other : Others())
        sent.push_back(Send(PartOf(data, Stripe(all, other, size())), other));
      std::vector<T> theirs(static_cast<size_t>(own.size()));
      T* const sum = data.data() + own.begin;
      for (const int other : Others()) {
        Receive(std::as_writable_bytes(std::span(theirs)), other).Wait(timeout_);
        add(sum, sum, theirs.data(), theirs.size());
      }
      for (Transfer& transfer : sent) transfer.Wait(timeout_);
    });
  }

  template <typename T>
  void AllReduceOf(std::span<T> data, ReduceOp op) {
    if (data.empty()) return;
    watch_.Run("all_reduce", [&] {
      const auto reduce = op == ReduceOp::kSum   ? Reduce<T, ReduceOp::kSum>
                          : op == ReduceOp::kMax ? Reduce<T, ReduceOp::kMax>
                                                 : Reduce<T, ReduceOp::kMin>;
      if (local_ != nullptr) {
        return local_->AllReduce(data.data(), data.size(), sizeof(T), reduce, OnWait());
      }
      gloo::AllreduceOptions options(context_);
      // Gloo needs no more of the type than its size.
      using Word = std::conditional_t<std::is_same_v<T, BFloat16>, uint16_t, T>;
      options.setOutput(reinterpret_cast<Word*>(data.data()), data.size());
      options.setReduceFunction(reduce);
      gloo::allreduce(options);
    });
  }

  // Looks after the others while a local call waits for them.
  std::function<void()> OnWait() {
    return [this, deadline = std::chrono::steady_clock::now() + timeout_] {
      // Rank 0, which has the store, may be the one that hangs.
      const auto left =
          std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left <= Milliseconds(0)) throw gloo::IoException("no answer");
      watch_.store().SetPatience(left);
      watch_.CheckAllLive();
      watch_.store().SetPatience(timeout_);
    };
  }

  const Milliseconds timeout_;
  PeerWatch watch_;  // outlives the context
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::unique_ptr<LocalReduce> local_;  // if all ranks are on one machine
};

}  // namespace

std::shared_ptr<ProcessGroup> MakeGlooGroup(int rank, int size, std::shared_ptr<StoreServer> server,
                                            std::shared_ptr<Store> store,
                                            std::shared_ptr<Store> life, Milliseconds timeout,
                                            bool one_machine) {
  return std::make_shared<GlooGroup>(rank, size, std::move(server), std::move(store),
                                     std::move(life), timeout, one_machine);
}

}  // namespace lathe
