// One rank of each machine, connected with each other over TCP. They make one collective at a time,
// all in the same order.
//
// Broadcasts and reductions of small data are Gloo's algorithms. The others exchange each member's
// part directly. Each member sends to the next one first, and receives from the one before it
// first, so that no two members send to one at the same time. Four receives are under way at a
// time.
#pragma once

#include <gloo/allreduce.h>
#include <gloo/context.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/groups/call_signature.h"
#include "lathe/distributed/groups/machine_layout.h"

namespace lathe {

class Channel {
 public:
  // `number` is the same on all members (see machine_layout.h). `context` is null if there is only
  // one member. Then no call below does anything.
  Channel(int number, std::shared_ptr<gloo::Context> context)
      : number_(number), context_(std::move(context)) {}

  int number() const { return number_; }
  int member() const { return context_ == nullptr ? 0 : context_->rank; }
  int size() const { return context_ == nullptr ? 1 : context_->size; }
  // Returns the i-th member after this one, or before it if `i` is negative.
  int Neighbour(int i) const { return (member() + i + size()) % size(); }

  // Returns in what the members' signatures differ, together with the differences that some members
  // know of. Takes log2(size) rounds, and returns when all members have called it.
  Differences Agree(const CallSignature& signature, Differences known) const;

  // Sends `outgoing(m)` to each other member m and receives `incoming(m, room)` from it. Neither
  // may be needed before `incoming(m, room)` has returned: both are called late. Empty parts don't
  // travel; both sides must know. A part may be received in `room`, memory of this call's that is
  // the part's own until `arrived` has returned.
  struct Exchange {
    std::function<std::span<const std::byte>(int member)> outgoing;
    std::function<std::span<std::byte>(int member, std::vector<std::byte>& room)> incoming;
    std::function<void(int member, std::span<std::byte> part)> arrived;
  };
  void Run(const Exchange& exchange) const;

  // data = that of member `root`.
  void Broadcast(std::span<std::byte> data, int root) const;
  // data = the reduction of small data over all members, with the same bits on each.
  using Combiner = void (*)(void* to, const void* a, const void* b, size_t n);
  template <typename T>
  void AllReduce(std::span<T> data, Combiner combine) const {
    if (size() == 1) return;
    gloo::AllreduceOptions options(context_);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction(combine);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::BCUBE);
    gloo::allreduce(options);
  }

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
  Buffer Send(std::span<const std::byte> bytes, int to) const;
  Buffer Receive(std::span<std::byte> bytes, int from) const;
  int number_;
  std::shared_ptr<gloo::Context> context_;
};

// What a rank sends of a flat buffer: its stripes of some ranges, where they have changed. Elements
// of type T travel as type Wire.
template <typename T, typename Wire = T>
class StripeMessage {
 public:
  explicit StripeMessage(std::vector<ElementRange> pieces) : pieces_(std::move(pieces)) {
    for (const ElementRange& piece : pieces_) num_elements_ += static_cast<size_t>(piece.size());
  }

  size_t num_elements() const { return num_elements_; }
  // Returns the message of the elements in `data`. It is made in `buffer`, unless the elements can
  // travel as they lie.
  std::span<const std::byte> Pack(T* data, std::vector<std::byte>& buffer) const {
    const std::span<std::byte> message = Room(data, buffer);
    if (IsInPlace()) return message;
    auto* wire = reinterpret_cast<Wire*>(message.data());
    for (const ElementRange& piece : pieces_)
      wire =
          std::transform(data + piece.begin, data + piece.end, wire, [](T x) { return Wire(x); });
    return message;
  }
  // Returns where to receive such a message.
  std::span<std::byte> Room(T* data, std::vector<std::byte>& buffer) const {
    if (IsInPlace()) {
      return std::as_writable_bytes(std::span(data + pieces_[0].begin, num_elements_));
    }
    buffer.resize(num_elements_ * sizeof(Wire));
    return buffer;
  }
  // Sets the elements in `data` from a message that lies where Room or Pack has said.
  void Unpack(std::span<const std::byte> message, T* data) const {
    if (IsInPlace()) return;
    const auto* wire = reinterpret_cast<const Wire*>(message.data());
    for (const ElementRange& piece : pieces_) {
      std::transform(wire, wire + piece.size(), data + piece.begin, [](Wire x) { return T(x); });
      wire += piece.size();
    }
  }

 private:
  bool IsInPlace() const { return std::is_same_v<T, Wire> && pieces_.size() == 1; }

  std::vector<ElementRange> pieces_;
  size_t num_elements_ = 0;
};

// Returns what each machine sends through a channel: its rank's stripes at the channel's place.
template <typename T, typename Wire>
std::vector<StripeMessage<T, Wire>> ChannelMessages(const MachineLayout& layout, int channel,
                                                    const std::vector<ElementRange>& ranges,
                                                    const std::vector<ElementRange>& changed) {
  std::vector<StripeMessage<T, Wire>> messages;
  for (int machine = 0; machine < layout.num_machines(); ++machine) {
    const int rank = layout.RankAt(machine, channel);
    std::vector<ElementRange> pieces;
    for (size_t i = 0; rank >= 0 && i < ranges.size(); ++i) {
      std::ranges::copy(Intersection(StripeOfRank(ranges[i], rank, layout.num_ranks()), changed),
                        std::back_inserter(pieces));
    }
    messages.emplace_back(std::move(pieces));
  }
  return messages;
}

}  // namespace lathe
