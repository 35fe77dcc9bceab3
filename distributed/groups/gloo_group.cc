#include "lathe/distributed/groups/gloo_group.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/gloo_connect.h"
#include "lathe/distributed/groups/shared_memory_collectives.h"
#include "lathe/distributed/liveness/peer_watch.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;

template <typename T, ReduceOp op>
void Reduce(void* out, const void* a, const void* b, size_t n) {
  T* to = static_cast<T*>(out);
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
#pragma omp simd
  for (size_t i = 0; i < n; ++i) {
    // A NaN is kept. It is the only value that is not equal to itself.
    to[i] = op == ReduceOp::kSum   ? static_cast<T>(x[i] + y[i])
            : op == ReduceOp::kMax ? (x[i] < y[i] || y[i] != y[i] ? y[i] : x[i])
                                   : (y[i] < x[i] || y[i] != y[i] ? y[i] : x[i]);
  }
}

// The transfers that are under way. Gloo's TCP has a gap: a send that finds its connection broken,
// because the peer has just ended, may wait until the timeout. All ranks that wait for this one
// then wait as long. So another thread breaks the waits off once a rank is known to be lost.
class ActiveTransfers {
 public:
  using Buffer = gloo::transport::UnboundBuffer;
  void Add(Buffer* buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.insert(buffer);
    if (broken_off_) Abort(buffer);
  }
  void Remove(Buffer* buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(buffer);
  }
  void BreakOff() {
    const std::lock_guard lock(mutex_);
    broken_off_ = true;
    for (Buffer* buffer : buffers_) Abort(buffer);
  }

 private:
  static void Abort(Buffer* buffer) {
    buffer->abortWaitSend();
    buffer->abortWaitRecv();
  }
  std::mutex mutex_;
  std::set<Buffer*> buffers_;
  bool broken_off_ = false;
};

// A message on its way from one rank to another. Without bytes there is no message.
class Transfer {
 public:
  Transfer() = default;
  Transfer(std::unique_ptr<ActiveTransfers::Buffer> buffer,
           std::shared_ptr<ActiveTransfers> transfers, bool is_send)
      : transfers_(std::move(transfers)), buffer_(std::move(buffer)), is_send_(is_send) {
    transfers_->Add(buffer_.get());
  }
  Transfer(Transfer&&) = default;
  ~Transfer() {
    if (buffer_ != nullptr) transfers_->Remove(buffer_.get());
  }
  void Wait(Milliseconds timeout) const {
    if (buffer_ == nullptr) return;
    const bool done = is_send_ ? buffer_->waitSend(timeout) : buffer_->waitRecv(timeout);
    if (!done) throw gloo::IoException("broken off");
  }

 private:
  std::shared_ptr<ActiveTransfers> transfers_;
  std::unique_ptr<ActiveTransfers::Buffer> buffer_;
  bool is_send_ = false;
};

class GlooGroup : public ProcessGroup {
 public:
  GlooGroup(int rank, int size, std::shared_ptr<StoreServer> server, std::shared_ptr<Store> store,
            std::shared_ptr<Store> life, Milliseconds timeout, bool one_machine)
      : ProcessGroup(rank, size),
        timeout_(timeout),
        watch_(rank, size, std::move(server), std::move(store)) {
    watch_.store().SetPatience(timeout);
    signal(SIGPIPE, SIG_IGN);  // a lost rank is reported by the call that needed it
    watch_.Run("connecting", [&] {
      life->SetPatience(timeout);
      const std::string host = watch_.store().local_host();  // needs all ranks to have joined
      context_ =
          ConnectGloo(rank, size, host, life, timeout, [this] { watch_.CheckForProblems(); });
    });
    watch_.StartHeartbeat(std::move(life), timeout,
                          [transfers = transfers_] { transfers->BreakOff(); });
    // Each rank tells what it knows: not all launchers say how many processes a machine has.
    const std::byte here{one_machine};
    std::vector<std::byte> all(static_cast<size_t>(size));
    AllGather(std::span(&here, 1), all);
    if (std::ranges::count(all, std::byte{0}) > 0) return;
    local_ = SharedMemoryCollectives::Connect(
        rank, size, [this](auto mine, auto theirs) { AllGather(mine, theirs); });
  }

  void AllReduce(std::span<float> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<double> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<int64_t> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<BFloat16> data, ReduceOp op) override { AllReduceOf(data, op); }

  void ReduceScatter(std::span<float> data) override { ReduceScatterOf(data); }
  void ReduceScatter(std::span<BFloat16> data) override { ReduceScatterOf(data); }

  bool reads_memory() const override { return local_ != nullptr; }

  void ShareMemory(Storage& storage) override {
    if (local_ == nullptr) return;
    watch_.Run("share_memory", [&] { local_->Share(storage, OnWait()); });
  }

  std::shared_ptr<const void> ExposeMemory(const std::shared_ptr<Storage>& storage,
                                           int64_t bytes) override {
    std::shared_ptr<const void> exposed;
    if (local_ == nullptr) return exposed;
    watch_.Run("show_memory", [&] { exposed = local_->Expose(storage, bytes, OnWait()); });
    return exposed;
  }

  void AllGatherStripes(std::span<float> data, const std::vector<ElementRange>& ranges,
                        const std::vector<ElementRange>& changed) override {
    watch_.Run("all_gather", [&] {
      if (local_ != nullptr) {
        return local_->AllGather(data.data(), ranges, changed, sizeof(float), OnWait());
      }
      Begin(Call::kGatherStripes, data.size_bytes());
      for (const ElementRange& range : ranges) GatherStripes(data, range);
    });
  }

  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CheckGatherSizes(mine, all);
    if (mine.empty()) return;
    watch_.Run("all_gather", [&] {
      if (local_ != nullptr) return local_->Gather(mine, all, OnWait());
      Begin(Call::kGather, mine.size());
      Gather(mine, all);
    });
  }

  void Broadcast(std::span<std::byte> data, int root) override {
    CheckRoot(root);
    if (data.empty()) return;
    watch_.Run("broadcast", [&] {
      Begin(Call::kBroadcast,
            data.size() * static_cast<size_t>(size()) + static_cast<size_t>(root));
      if (rank() != root) return Receive(data, root).Wait(timeout_);
      std::vector<Transfer> transfers;
      for (const int other : Others()) transfers.push_back(Send(data, other));
      for (const Transfer& transfer : transfers) transfer.Wait(timeout_);
    });
  }

  void Barrier() override {
    watch_.Run("barrier", [&] {
      const std::byte here{1};
      std::vector<std::byte> all(static_cast<size_t>(size()));
      if (local_ != nullptr) return local_->Gather(std::span(&here, 1), all, OnWait());
      Begin(Call::kBarrier, 0);
    });
  }

  void CheckPeers() override { watch_.CheckPeers(); }
  void SetAlarm(const std::function<void(const Error&)>& alarm) override { watch_.SetAlarm(alarm); }
  void Abandon() override { watch_.Abandon(); }
  void SetPhase(const std::string& phase) override { watch_.SetPhase(phase); }
  void PostMessage(const std::string& key, const std::string& value) override {
    watch_.PostMessage(key, value);
  }
  std::string AwaitMessage(const std::string& key, int from) override {
    return watch_.AwaitMessage(key, from);
  }
  std::optional<std::string> FindMessage(const std::string& key,
                                         std::chrono::milliseconds time) override {
    return watch_.FindMessage(key, time);
  }

 private:
  static constexpr uint64_t kSlot = uint64_t{0x7f} << 56;  // Gloo's own slots are below

  Transfer Send(std::span<const std::byte> bytes, int to) {
    if (bytes.empty()) return {};
    // The bytes of a send are only read.
    auto buffer = context_->createUnboundBuffer(const_cast<std::byte*>(bytes.data()), bytes.size());
    buffer->send(to, kSlot);
    return {std::move(buffer), transfers_, true};
  }
  Transfer Receive(std::span<std::byte> bytes, int from) {
    if (bytes.empty()) return {};
    auto buffer = context_->createUnboundBuffer(bytes.data(), bytes.size());
    buffer->recv(from, kSlot);
    return {std::move(buffer), transfers_, false};
  }

  // --- over TCP; called inside Run ---

  enum class Call : uint8_t {
    kGather,
    kGatherStripes,
    kBroadcast,
    kBarrier,
    kAllReduce,
    kReduceScatter
  };

  // Throws unless all ranks are in the same call, with the same number of bytes. A message longer
  // than the receiver expects would make Gloo end the process, on one of its own threads.
  void Begin(Call call, size_t bytes) {
    const uint64_t mine = static_cast<uint64_t>(call) << 56 | bytes;
    std::vector<uint64_t> all(static_cast<size_t>(size()));
    Gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    if (std::ranges::count(all, mine) != size()) throw CallsDiffer();
  }

  // all = every rank's `mine`. Every rank sends to every other one at once.
  void Gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    std::vector<Transfer> transfers;
    for (int other = 0; other < size(); ++other) {
      const std::span<std::byte> theirs =
          all.subspan(mine.size() * static_cast<size_t>(other), mine.size());
      if (other == rank()) {
        std::copy(mine.begin(), mine.end(), theirs.begin());
      } else {
        transfers.push_back(Send(mine, other));
        transfers.push_back(Receive(theirs, other));
      }
    }
    for (const Transfer& transfer : transfers) transfer.Wait(timeout_);
  }

  template <typename T>
  void GatherStripes(std::span<T> data, ElementRange range) {
    std::vector<Transfer> transfers;
    for (const int other : Others()) {
      transfers.push_back(Send(PartOf(data, StripeOfRank(range, rank(), size())), other));
      transfers.push_back(Receive(PartOf(data, StripeOfRank(range, other, size())), other));
    }
    for (const Transfer& transfer : transfers) transfer.Wait(timeout_);
  }

  // Sets this rank's stripe to all ranks' values combined: its own first, then the others' in
  // ascending order of ranks.
  template <typename T>
  void CombineOwn(std::span<T> data, SharedMemoryCollectives::Combine combine) {
    const ElementRange all = {0, std::ssize(data)}, own = StripeOfRank(all, rank(), size());
    std::vector<Transfer> sent;
    for (const int other : Others())
      sent.push_back(Send(PartOf(data, StripeOfRank(all, other, size())), other));
    std::vector<T> theirs(static_cast<size_t>(own.size()));
    T* const result = data.data() + own.begin;
    for (const int other : Others()) {
      Receive(std::as_writable_bytes(std::span(theirs)), other).Wait(timeout_);
      combine(result, result, theirs.data(), theirs.size());
    }
    for (const Transfer& transfer : sent) transfer.Wait(timeout_);
  }

  template <typename T>
  static std::span<std::byte> PartOf(std::span<T> data, ElementRange range) {
    return std::as_writable_bytes(
        data.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size())));
  }

  // Returns the other ranks, in ascending order.
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
      Begin(Call::kReduceScatter, data.size_bytes());
      CombineOwn(data, add);
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
      Begin(Call::kAllReduce, data.size_bytes());
      CombineOwn(data, reduce);
      GatherStripes(data, {0, std::ssize(data)});
    });
  }

  // Returns a callback that throws if a rank is lost or the time is up. A call that works in local
  // memory calls it while it waits for others.
  std::function<void()> OnWait() {
    return [this, deadline = std::chrono::steady_clock::now() + timeout_] {
      // Rank 0 serves the store and may be the one that hangs, so the store gets only the time that
      // is left.
      const auto left =
          std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left <= Milliseconds(0)) throw gloo::IoException("no answer");
      // It gets at least half a second, as a busy machine may be slow to answer.
      watch_.SetPatience(std::max(left, Milliseconds(500)));
      try {
        watch_.CheckAllLive();
      } catch (...) {
        watch_.SetPatience(timeout_);
        throw;
      }
      watch_.SetPatience(timeout_);
    };
  }

  const Milliseconds timeout_;
  PeerWatch watch_;  // destroyed after the context
  const std::shared_ptr<ActiveTransfers> transfers_ = std::make_shared<ActiveTransfers>();
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::unique_ptr<SharedMemoryCollectives> local_;  // null unless all ranks are on one machine
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
