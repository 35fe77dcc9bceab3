#include "lathe/tests/benchmarks/simulator/recorded_call.h"

#include <absl/container/flat_hash_map.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/channel.h"
#include "lathe/distributed/groups/local_ranks.h"

namespace lathe::simulator {
namespace {

using Kind = Action::Kind;

int64_t BytesOf(int64_t num_elements) { return num_elements * static_cast<int64_t>(sizeof(float)); }

// Pairs the sends of a call with their receives. Those between two ranks over one channel and slot
// are paired in their order.
class Recorder {
 public:
  explicit Recorder(int num_ranks) { call_.actions.resize(static_cast<size_t>(num_ranks)); }

  void Add(int rank, Action action) { call_.actions[static_cast<size_t>(rank)].push_back(action); }

  // Notes one end of a message. Returns the message's number.
  int32_t AddEnd(Kind kind, int from, int to, int channel, uint64_t slot, int64_t bytes) {
    std::deque<std::pair<Kind, int32_t>>& waiting = waiting_[{from, to, channel, slot}];
    int32_t message = 0;
    if (!waiting.empty() && waiting.front().first != kind) {
      message = waiting.front().second;
      waiting.pop_front();
      if (call_.messages[static_cast<size_t>(message)].bytes != bytes)
        throw std::logic_error("a message's ends have different sizes");
      if (waiting.empty()) waiting_.erase({from, to, channel, slot});
    } else {
      message = static_cast<int32_t>(call_.messages.size());
      call_.messages.push_back({from, to, bytes});
      waiting.emplace_back(kind, message);
    }
    Add(kind == Kind::kSend ? from : to, {kind, message, bytes});
    return message;
  }

  RecordedCall Take() {
    if (!waiting_.empty()) throw std::logic_error("a message has only one end");
    return std::move(call_);
  }

 private:
  RecordedCall call_;
  absl::flat_hash_map<std::tuple<int, int, int, uint64_t>, std::deque<std::pair<Kind, int32_t>>>
      waiting_;
};

// Where this rank's channel lies.
struct Seat {
  Recorder& recorder;
  const MachineLayout& layout;
  int rank, channel;

  int RankOf(int member) const { return layout.RankAt(member, layout.CarrierOf(channel, member)); }
};

class RecordingBuffer : public gloo::transport::UnboundBuffer {
 public:
  RecordingBuffer(const Seat& seat, void* data, size_t bytes)
      : UnboundBuffer(data, bytes), seat_(seat) {}

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    sent_.push_back(seat_.recorder.AddEnd(Kind::kSend, seat_.rank, seat_.RankOf(to), seat_.channel,
                                          slot, BytesOf(offset, bytes)));
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    received_.push_back(seat_.recorder.AddEnd(Kind::kReceive, seat_.RankOf(from), seat_.rank,
                                              seat_.channel, slot, BytesOf(offset, bytes)));
  }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override {
    throw std::logic_error("receives from any rank can't be recorded");
  }
  bool waitSend(int*, std::chrono::milliseconds) override { return Await(Kind::kAwaitSend, sent_); }
  bool waitRecv(int*, std::chrono::milliseconds) override {
    return Await(Kind::kAwaitReceive, received_);
  }
  void abortWaitRecv() override {}
  void abortWaitSend() override {}

 private:
  int64_t BytesOf(size_t offset, size_t bytes) const {
    return static_cast<int64_t>(bytes == kUnspecifiedByteCount ? size - offset : bytes);
  }
  bool Await(Kind kind, std::deque<int32_t>& messages) {
    if (messages.empty()) throw std::logic_error("a wait for no transfer");
    seat_.recorder.Add(seat_.rank, {kind, messages.front(), 0});
    messages.pop_front();
    return true;
  }
  const Seat seat_;
  std::deque<int32_t> sent_, received_;
};

class RecordingTransport : public gloo::transport::Context {
 public:
  RecordingTransport(const Seat& seat, int member, int num_members)
      : Context(member, num_members), seat_(seat) {}
  std::unique_ptr<gloo::transport::Pair>& createPair(int) override {
    throw std::logic_error("nothing is connected");
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      size_t bytes) override {
    return std::make_unique<RecordingBuffer>(seat_, data, bytes);
  }

 private:
  const Seat seat_;
};

class RecordingContext : public gloo::Context {
 public:
  explicit RecordingContext(const Seat& seat)
      : Context(seat.layout.MachineOf(seat.rank), seat.layout.num_machines()) {
    transportContext_ = std::make_shared<RecordingTransport>(seat, rank, size);
    setTimeout(std::chrono::hours(1));
  }
};

// Nothing is read from this memory or written there.
std::span<std::byte> Nowhere(size_t bytes) {
  static std::byte place;
  return {&place, bytes};
}

// What one rank does in a call. The methods follow GlooGroup's of the same names, with sizes in
// place of data.
class RankRecorder {
 public:
  RankRecorder(Recorder& recorder, const MachineLayout& layout, int rank)
      : recorder_(recorder),
        layout_(layout),
        rank_(rank),
        local_size_(std::ssize(layout.RanksOf(layout.MachineOf(rank)))) {
    for (const int channel : layout.ChannelsOf(rank)) {
      channels_.emplace_back(
          channel, layout.num_machines() == 1
                       ? nullptr
                       : std::make_shared<RecordingContext>(Seat{recorder, layout, rank, channel}));
      if (layout.num_machines() == 1) break;
    }
  }

  // All ranks compare what they call.
  void Begin() {
    Meet();
    for (const Channel& channel : channels_) channel.Agree({}, 0);
  }

  void ReduceSmall(int64_t num_elements) {
    std::vector<float> data(static_cast<size_t>(num_elements));
    const auto nothing = [](void*, const void*, const void*, size_t) {};
    for (const Channel& channel : channels_) channel.AllReduce(std::span(data), nothing);
  }

  void ReduceStripes(int64_t num_elements) {
    const std::vector<ElementRange> all = {{0, num_elements}};
    for (const Channel& channel : channels_) {
      const auto messages = ChannelMessages<float, float>(layout_, channel.number(), all, all);
      const auto bytes_of = [&](int machine) {
        return messages[static_cast<size_t>(machine)].num_elements() * sizeof(float);
      };
      // Each rank of the machine gives its values.
      const auto reduce_of_machine = [&](int machine) {
        Touch(static_cast<int64_t>(bytes_of(machine)) * local_size_);
      };
      bool has_reduced_own = false;
      const auto reduce_own = [&] {
        if (!std::exchange(has_reduced_own, true)) reduce_of_machine(channel.member());
      };
      channel.Run({.outgoing = [&](int member) -> std::span<const std::byte> {
                     reduce_of_machine(member);
                     return Nowhere(bytes_of(member));
                   },
                   .incoming = [&](int, auto&) { return Nowhere(bytes_of(channel.member())); },
                   .arrived =
                       [&](int, std::span<std::byte> part) {
                         reduce_own();
                         Touch(std::ssize(part));
                       }});
      reduce_own();
    }
  }

  void GatherStripes(const std::vector<ElementRange>& ranges) {
    const std::vector<ElementRange> all = {{0, ranges.back().end}};
    for (const Channel& channel : channels_) {
      if (layout_.num_machines() == 1) break;
      const auto messages = ChannelMessages<float, float>(layout_, channel.number(), ranges, all);
      const auto bytes_of = [&](int machine) {
        return messages[static_cast<size_t>(machine)].num_elements() * sizeof(float);
      };
      channel.Run({.outgoing = [&](int) -> std::span<const std::byte> {
                     return Nowhere(bytes_of(channel.member()));
                   },
                   .incoming = [&](int member, auto&) { return Nowhere(bytes_of(member)); },
                   .arrived = [](int, std::span<std::byte>) {}});
    }
    if (local_size_ == 1) return;
    int64_t bytes = 0;
    for (const ElementRange& range : ranges) bytes += BytesOf(range.size());
    Meet();
    Touch(bytes * (local_size_ - 1) / local_size_);
    Meet();
  }

  void Gather(int64_t bytes_of_each) {
    for (const Channel& channel : channels_) {
      const auto part_of = [&](int machine) {
        return Nowhere(
            layout_.RankAt(machine, channel.number()) < 0 ? 0 : static_cast<size_t>(bytes_of_each));
      };
      const std::span<std::byte> own = part_of(channel.member());
      channel.Run({.outgoing = [&](int) -> std::span<const std::byte> { return own; },
                   .incoming = [&](int machine, auto&) { return part_of(machine); },
                   .arrived = [](int, std::span<std::byte>) {}});
    }
    if (local_size_ == 1) return;
    Meet();
    Touch(bytes_of_each * layout_.num_ranks());
    Meet();
  }

  void BroadcastFrom(int root, int64_t bytes) {
    const bool is_small = IsSmall(bytes);
    const auto bytes_of = [&](int channel) {
      return is_small ? bytes : StripeOfRank({0, bytes}, channel, layout_.num_channels()).size();
    };
    for (const Channel& channel : channels_) {
      Touch(bytes_of(channel.number()));
      channel.Broadcast(Nowhere(static_cast<size_t>(bytes_of(channel.number()))),
                        layout_.MachineOf(root));
    }
    if (is_small || local_size_ == 1) return;
    Meet();
    Touch(bytes);
    Meet();
  }

  static bool IsSmall(int64_t bytes) { return LocalRanks::IsSmall(static_cast<size_t>(bytes)); }

 private:
  void Meet() {
    if (local_size_ > 1) recorder_.Add(rank_, {Kind::kMeet});
  }
  void Touch(int64_t bytes) {
    if (bytes > 0) recorder_.Add(rank_, {Kind::kMemory, -1, bytes});
  }

  Recorder& recorder_;
  const MachineLayout& layout_;
  const int rank_;
  const int64_t local_size_;
  std::vector<Channel> channels_;
};

template <typename Body>
RecordedCall Record(const MachineLayout& layout, const Body& body) {
  Recorder recorder(layout.num_ranks());
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    RankRecorder of_rank(recorder, layout, rank);
    of_rank.Begin();
    body(of_rank);
  }
  return recorder.Take();
}

}  // namespace

int64_t RecordedCall::BytesSent(const MachineLayout& layout, int machine) const {
  int64_t bytes = 0;
  for (const Message& message : messages) {
    if (layout.MachineOf(message.from) == machine) bytes += message.bytes;
  }
  return bytes;
}

RecordedCall RecordAllReduce(const MachineLayout& layout, int64_t num_elements) {
  return Record(layout, [&](RankRecorder& rank) {
    if (RankRecorder::IsSmall(BytesOf(num_elements))) return rank.ReduceSmall(num_elements);
    rank.ReduceStripes(num_elements);
    rank.GatherStripes({{0, num_elements}});
  });
}

RecordedCall RecordReduceScatter(const MachineLayout& layout, int64_t num_elements) {
  return Record(layout, [&](RankRecorder& rank) {
    if (RankRecorder::IsSmall(BytesOf(num_elements))) return rank.ReduceSmall(num_elements);
    rank.ReduceStripes(num_elements);
  });
}

RecordedCall RecordAllGatherStripes(const MachineLayout& layout,
                                    const std::vector<ElementRange>& ranges) {
  return Record(layout, [&](RankRecorder& rank) { rank.GatherStripes(ranges); });
}

RecordedCall RecordAllGather(const MachineLayout& layout, int64_t bytes_of_each) {
  return Record(layout, [&](RankRecorder& rank) { rank.Gather(bytes_of_each); });
}

RecordedCall RecordBroadcast(const MachineLayout& layout, int64_t bytes, int root) {
  return Record(layout, [&](RankRecorder& rank) { rank.BroadcastFrom(root, bytes); });
}

RecordedCall RecordBarrier(const MachineLayout& layout) {
  return Record(layout, [](RankRecorder&) {});
}

Connections CountConnections(const MachineLayout& layout) {
  Connections connections;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const int64_t own = std::ssize(layout.ChannelsOf(rank)) * (layout.num_machines() - 1);
    connections.all += own;
    connections.most = std::max(connections.most, own);
  }
  connections.all /= 2;  // each has two ends
  return connections;
}

MachineLayout LayoutOf(const std::vector<int>& machines) {
  std::vector<RankPlacement> placements;
  for (size_t machine = 0; machine < machines.size(); ++machine) {
    for (int place = 0; place < machines[machine]; ++place)
      placements.push_back({machine + 1, place, machines[machine]});
  }
  return MachineLayout(placements);
}

}  // namespace lathe::simulator
