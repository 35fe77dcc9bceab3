#include "lathe/distributed/groups/gloo_group.h"

#include <absl/cleanup/cleanup.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/background_gathers.h"
#include "lathe/distributed/groups/call_signature.h"
#include "lathe/distributed/groups/gloo_connect.h"
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

class GlooGroup : public ProcessGroup {
 public:
  GlooGroup(const ProcessEnvironment& env, std::shared_ptr<StoreServer> server,
            std::shared_ptr<Store> store, std::shared_ptr<Store> life, Milliseconds timeout)
      : ProcessGroup(env.rank, env.world_size),
        timeout_(timeout),
        watch_(env.rank, env.world_size, std::move(server), std::move(store)) {
    watch_.store().SetPatience(timeout);
    signal(SIGPIPE, SIG_IGN);  // a lost rank is reported by the call that needed it
    watch_.Run("connecting", [&] { links_ = LinkMachines(watch_, env, timeout, transfers_); });
    links_.local->SetOnWait([this] { CheckWhileWaiting(); });
    watch_.StartHeartbeat(std::move(life), timeout,
                          [transfers = transfers_] { transfers->BreakOff(); });
    // The store goes with rank 0, and others may still need it to connect.
    Run("connecting", {.call = Call::kBarrier}, {}, [] {});
  }

  void AllReduce(std::span<float> data, ReduceOp op) override { ReduceOf<float>(data, op); }
  void AllReduce(std::span<double> data, ReduceOp op) override { ReduceOf<double>(data, op); }
  void AllReduce(std::span<int64_t> data, ReduceOp op) override { ReduceOf<int64_t>(data, op); }
  void AllReduceCompressed(std::span<float> data) override { ReduceOf<BFloat16>(data); }
  void ReduceScatter(std::span<float> data) override {
    ReduceOf<float>(data, ReduceOp::kSum, Call::kReduceScatter);
  }
  void ReduceScatterCompressed(std::span<float> data) override {
    ReduceOf<BFloat16>(data, ReduceOp::kSum, Call::kReduceScatter);
  }

  bool reads_memory() const override { return links_.layout.num_machines() == 1; }

  void ShareMemory(Storage& storage) override {
    if (!reads_memory()) return;
    Run("share_memory", {.call = Call::kShareMemory}, {}, [&] { links_.local->Share(storage); });
  }

  std::shared_ptr<const void> ExposeMemory(const std::shared_ptr<Storage>& storage,
                                           int64_t bytes) override {
    std::shared_ptr<const void> exposed;
    Run("show_memory", {.call = Call::kExposeMemory}, {}, [&] {
      if (links_.local->size() > 1) exposed = links_.local->Expose(storage, bytes);
    });
    return exposed;
  }

  void AllGatherStripes(std::span<float> data, const std::vector<ElementRange>& ranges,
                        const std::vector<ElementRange>& changed) override {
    Run("all_gather", kGatherStripes, std::as_bytes(data),
        [&] { GatherStripes<float>(data.data(), ranges, changed, /*parallel=*/true); });
  }

  void BeginAllGatherStripes(const Tensor& data, const std::vector<ElementRange>& ranges,
                             const std::vector<ElementRange>& changed) override {
    const std::span<float> values = data.values<float>();
    background_.Begin(data, ranges, [this, values, changed](const ElementRange& range) {
      const std::vector<ElementRange> of_range = Intersection(range, changed);
      if (of_range.empty()) return;
      const auto gather = [&] {
        GatherStripes<float>(values.data(), {range}, of_range, /*parallel=*/false);
      };
      Run("all_gather", kGatherStripes, std::as_bytes(values), gather, /*in_background=*/true);
    });
  }

  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CheckGatherSizes(mine, all);
    if (mine.empty()) return;
    Run("all_gather", {.call = Call::kAllGather}, mine, [&] { Gather(mine, all); });
  }

  void Broadcast(std::span<std::byte> data, int root) override {
    CheckRoot(root);
    if (data.empty()) return;
    Run("broadcast", {.call = Call::kBroadcast, .root = root}, data,
        [&] { BroadcastFrom(root, data); });
  }

  void Barrier() override {
    Run("barrier", {.call = Call::kBarrier}, {}, [] {});
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
  std::optional<std::string> FindMessage(const std::string& key, Milliseconds time) override {
    return watch_.FindMessage(key, time);
  }

 private:
  static constexpr CallSignature kGatherStripes = {.call = Call::kAllGatherStripes,
                                                   .dtype = static_cast<int32_t>(DType::kF32)};

  // Makes a call, after those in the background unless it is one of them. First all ranks compare
  // what they call and publish their data to others of their machine. Then they call `body`.
  void Run(const char* what, CallSignature signature, std::span<const std::byte> data,
           const std::function<void()>& body, bool in_background = false) {
    if (!in_background) background_.WaitForAll();
    const auto call = times().MeasureCall();
    watch_.Run(what, [&] {
      call_start_ = std::chrono::steady_clock::now();
      signature.bytes = data.size();
      signature.sequence = num_calls_++;
      Differences differences = links_.local->Publish(signature, data);
      for (const Channel& channel : links_.channels)
        differences = channel.Agree(signature, differences);
      if (differences != 0) throw CallsDiffer(NamesOf(differences));
      body();
    });
  }

  // In the calls below values travel between machines as type Wire.

  // Makes a kAllReduce or a kReduceScatter.
  template <typename Wire, typename T>
  void ReduceOf(std::span<T> data, ReduceOp op = ReduceOp::kSum, Call call = Call::kAllReduce) {
    if (data.empty()) return;
    const LocalRanks::Combiner combine = op == ReduceOp::kSum   ? Reduce<T, ReduceOp::kSum>
                                         : op == ReduceOp::kMax ? Reduce<T, ReduceOp::kMax>
                                                                : Reduce<T, ReduceOp::kMin>;
    const CallSignature signature = {.call = call,
                                     .dtype = static_cast<int32_t>(DTypeOf<Wire>::value),
                                     .op = static_cast<int32_t>(op)};
    const bool gathers = call == Call::kAllReduce;
    Run(gathers ? "all_reduce" : "reduce_scatter", signature, std::as_bytes(data), [&] {
      if (LocalRanks::IsSmall(data.size_bytes())) return ReduceSmall(data, combine);
      ReduceStripes<Wire>(data, combine);
      const std::vector<ElementRange> all = {{0, std::ssize(data)}};
      if (gathers) GatherStripes<Wire>(data.data(), all, all, /*parallel=*/false);
    });
  }

  // data = the reduction over all ranks. Each rank adds up the values of its machine, and all
  // channels then do the same work.
  template <typename T>
  void ReduceSmall(std::span<T> data, LocalRanks::Combiner combine) {
    links_.local->CombineSmall(data.size(), sizeof(T), combine);
    const std::vector<T> machine(data.begin(), data.end());
    for (const Channel& channel : links_.channels) {
      std::ranges::copy(machine, data.begin());
      channel.AllReduce(data, combine);
    }
  }

  // This rank's stripe = the reduction over all ranks. A stripe travels through the channel of its
  // owner's place. The channel's carriers first reduce the values of their machines. The owner then
  // adds those of the other machines, from the one before its own backward.
  template <typename Wire, typename T>
  void ReduceStripes(std::span<T> data, LocalRanks::Combiner combine) {
    for (const Channel& channel : links_.channels) {
      const auto stripe_of = [&](int machine) {
        const int owner = links_.layout.RankAt(machine, channel.number());
        return owner < 0 ? ElementRange{} : StripeOfRank({0, std::ssize(data)}, owner, size());
      };
      const auto reduce_of_machine = [&](ElementRange stripe) {
        links_.local->Combine(stripe, sizeof(T), combine);
      };
      const ElementRange own = stripe_of(channel.member());
      const auto n = static_cast<size_t>(own.size());
      bool has_reduced_own = false;
      const auto reduce_own = [&] {
        if (!std::exchange(has_reduced_own, true)) reduce_of_machine(own);
      };
      std::vector<std::vector<std::byte>> sent;
      const auto outgoing = [&](int member) {
        const ElementRange stripe = stripe_of(member);
        reduce_of_machine(stripe);
        return StripeMessage<T, Wire>({stripe}).Pack(data.data(), sent.emplace_back());
      };
      const auto incoming = [&](int, std::vector<std::byte>& room) -> std::span<std::byte> {
        room.resize(n * sizeof(Wire));
        return room;
      };
      const auto arrived = [&](int, std::span<std::byte> part) {
        reduce_own();  // only now, while the other stripes travel
        T* const to = data.data() + own.begin;
        if constexpr (std::is_same_v<T, Wire>) {
          combine(to, to, part.data(), n);
        } else {
          const auto* theirs = reinterpret_cast<const Wire*>(part.data());
          for (size_t k = 0; k < n; ++k) to[k] += static_cast<T>(theirs[k]);
        }
      };
      channel.Run({outgoing, incoming, arrived});
      reduce_own();
    }
  }

  // Each rank's stripes of `ranges`, where they are in `changed`, travel through the channel of its
  // place.
  template <typename Wire, typename T>
  void GatherStripes(T* data, const std::vector<ElementRange>& ranges,
                     const std::vector<ElementRange>& changed, bool parallel) {
    for (const Channel& channel : links_.channels) {
      if (reads_memory()) break;
      const auto messages =
          ChannelMessages<T, Wire>(links_.layout, channel.number(), ranges, changed);
      const auto of = [&](int machine) -> const StripeMessage<T, Wire>& {
        return messages[static_cast<size_t>(machine)];
      };
      const StripeMessage<T, Wire>& mine = of(channel.member());
      std::vector<std::byte> packed;
      const std::span<const std::byte> own = mine.Pack(data, packed);
      if (!std::is_same_v<T, Wire>) mine.Unpack(own, data);  // what all others get
      channel.Run({.outgoing = [&](int) { return own; },
                   .incoming = [&](int member, auto& room) { return of(member).Room(data, room); },
                   .arrived = [&](int member, auto part) { of(member).Unpack(part, data); }});
    }
    if (links_.local->size() == 1) return;
    std::vector<int> sources;
    for (int owner = 0; owner < size(); ++owner) sources.push_back(SourceOf(owner));
    links_.local->WaitForAll();
    links_.local->ReadStripes(sources, ranges, changed, sizeof(T), parallel);
    links_.local->WaitForAll();
  }

  // Returns the place on this machine of the rank that has what comes from rank `owner`.
  int SourceOf(int owner) const {
    return links_.layout.CarrierOf(links_.layout.PlaceOf(owner), links_.layout.MachineOf(rank()));
  }

  void Gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    const auto part_of = [&](int owner) {
      return all.subspan(mine.size() * static_cast<size_t>(std::max(owner, 0)),
                         owner < 0 ? 0 : mine.size());
    };
    std::ranges::copy(mine, part_of(rank()).begin());
    for (const Channel& channel : links_.channels) {
      const auto part_of_machine = [&](int machine) {
        return part_of(links_.layout.RankAt(machine, channel.number()));
      };
      const auto own = part_of_machine(channel.member());
      channel.Run({.outgoing = [&](int) -> std::span<const std::byte> { return own; },
                   .incoming = [&](int machine, auto&) { return part_of_machine(machine); },
                   .arrived = [](int, std::span<std::byte>) {}});
    }
    if (links_.local->size() == 1) return;
    // On one machine the ranks have published what each of them gives, and otherwise not yet what
    // they have received.
    if (!reads_memory()) links_.local->Publish({}, all);
    for (int owner = 0; owner < size(); ++owner) {
      const std::span<std::byte> part = part_of(owner);
      if (SourceOf(owner) == links_.local->place()) continue;
      links_.local->Read(SourceOf(owner),
                         reads_memory() ? 0 : static_cast<size_t>(part.data() - all.data()), part);
    }
    if (!LocalRanks::IsSmall(reads_memory() ? mine.size() : all.size())) links_.local->WaitForAll();
  }

  // Small data travels whole through each channel, and large data in as many parts as there are
  // channels.
  void BroadcastFrom(int root, std::span<std::byte> data) {
    const bool is_small = LocalRanks::IsSmall(data.size());
    const int machine = links_.layout.MachineOf(rank()), home = links_.layout.MachineOf(root);
    const auto part_of = [&](int channel) {
      if (is_small) return data;
      const ElementRange part =
          StripeOfRank({0, std::ssize(data)}, channel, links_.layout.num_channels());
      return std::span(data.begin() + part.begin, data.begin() + part.end);
    };
    const auto read = [&](int place, std::span<std::byte> part) {
      if (rank() == root) return;
      links_.local->Read(place, static_cast<size_t>(part.data() - data.data()), part);
    };
    for (const Channel& channel : links_.channels) {
      const std::span<std::byte> part = part_of(channel.number());
      if (machine == home) read(links_.layout.PlaceOf(root), part);
      channel.Broadcast(part, home);
    }
    if (is_small || links_.local->size() == 1) return;
    if (machine != home) links_.local->WaitForAll();
    for (int channel = 0; channel < links_.layout.num_channels(); ++channel) {
      const int carrier = links_.layout.CarrierOf(channel, machine);
      if (carrier == links_.local->place()) continue;
      read(machine == home ? links_.layout.PlaceOf(root) : carrier, part_of(channel));
    }
    links_.local->WaitForAll();
  }

  // Throws if a rank is lost or the time is up. Ranks of one machine call it while they wait for
  // each other.
  void CheckWhileWaiting() {
    // Rank 0 serves the store and may be the one that hangs, so the store gets only the time that
    // is left. It gets at least half a second, as a busy machine may be slow to answer.
    const auto passed =
        std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - call_start_);
    watch_.SetPatience(std::max(timeout_ - passed, Milliseconds(500)));
    const absl::Cleanup restore = [this] { watch_.SetPatience(timeout_); };
    watch_.CheckAllLive();
    if (transfers_->is_broken_off()) throw std::runtime_error("no answer");
  }

  const Milliseconds timeout_;
  PeerWatch watch_;  // destroyed after the connections
  const std::shared_ptr<ActiveTransfers> transfers_ = std::make_shared<ActiveTransfers>();
  MachineLinks links_;
  uint64_t num_calls_ = 0;
  std::chrono::steady_clock::time_point call_start_;  // of the call that is being made
  BackgroundGathers background_{times()};             // destroyed first
};

}  // namespace

std::shared_ptr<ProcessGroup> MakeGlooGroup(const ProcessEnvironment& env,
                                            std::shared_ptr<StoreServer> server,
                                            std::shared_ptr<Store> store,
                                            std::shared_ptr<Store> life, Milliseconds timeout) {
  return std::make_shared<GlooGroup>(env, std::move(server), std::move(store), std::move(life),
                                     timeout);
}

}  // namespace lathe
