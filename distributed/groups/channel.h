// One rank of each machine, connected with each other over TCP. They make one collective at a time,
// all in the same order.
//
// Broadcasts and reductions of small data are Gloo's algorithms. The others exchange each member's
// part directly. Each member sends to the next one first, and receives from the one before it
// first, so that no two members send to one at the same time. Four receives are under way at a
// time.
#pragma once

#include <gloo/context.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lathe/distributed/groups/call_signature.h"

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
  void AllReduce(std::span<T> data, Combiner combine) const;

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
  Buffer Send(std::span<const std::byte> bytes, int to) const;
  Buffer Receive(std::span<std::byte> bytes, int from) const;
  int number_;
  std::shared_ptr<gloo::Context> context_;
};

}  // namespace lathe
