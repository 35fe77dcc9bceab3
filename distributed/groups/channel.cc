#include "lathe/distributed/groups/channel.h"

#include <gloo/broadcast.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <bit>
#include <deque>
#include <utility>

namespace lathe {
namespace {

constexpr uint64_t kSlot = uint64_t{0x7f} << 56;  // Gloo's own slots are below
constexpr size_t kReceivesAhead = 4;

}  // namespace

Channel::Buffer Channel::Send(std::span<const std::byte> bytes, int to) const {
  if (bytes.empty()) return nullptr;
  // The bytes of a send are only read.
  Buffer buffer = context_->createUnboundBuffer(const_cast<std::byte*>(bytes.data()), bytes.size());
  buffer->send(to, kSlot);
  return buffer;
}

Channel::Buffer Channel::Receive(std::span<std::byte> bytes, int from) const {
  if (bytes.empty()) return nullptr;
  Buffer buffer = context_->createUnboundBuffer(bytes.data(), bytes.size());
  buffer->recv(from, kSlot);
  return buffer;
}

Differences Channel::Agree(const CallSignature& signature, Differences known) const {
  struct Word {
    CallSignature signature;
    Differences known;
  };
  // After the round of distance d, a member knows of the 2 d - 1 members before it. A message
  // longer than the receiver expects would make Gloo end the process, on one of its own threads. So
  // nothing else may travel before all agree.
  const int num_rounds = std::bit_width(static_cast<unsigned>(size() - 1));
  std::vector<Word> theirs(static_cast<size_t>(num_rounds)), mine(theirs.size());
  std::vector<Buffer> received, sent;
  for (size_t round = 0; round < theirs.size(); ++round) {
    received.push_back(
        Receive(std::as_writable_bytes(std::span(&theirs[round], 1)), Neighbour(-(1 << round))));
  }
  for (size_t round = 0; round < theirs.size(); ++round) {
    mine[round] = {signature, known};
    sent.push_back(Send(std::as_bytes(std::span(&mine[round], 1)), Neighbour(1 << round)));
    received[round]->waitRecv();
    known |= theirs[round].known | Compare(theirs[round].signature, signature);
  }
  for (const Buffer& buffer : sent) buffer->waitSend();
  return known;
}

void Channel::Run(const Exchange& exchange) const {
  struct Part {
    int from;
    std::span<std::byte> bytes;
    Buffer buffer;
  };
  // The rooms come first, so that they outlive the receives into them if an error ends the call:
  // Gloo's thread writes until the buffer of a receive is gone.
  std::array<std::vector<std::byte>, kReceivesAhead> rooms;
  std::deque<Part> parts;
  int posted = 0;
  const auto post = [&] {
    while (posted + 1 < size() && parts.size() < kReceivesAhead) {
      const int from = Neighbour(-++posted);
      const std::span<std::byte> bytes =
          exchange.incoming(from, rooms[static_cast<size_t>(posted) % kReceivesAhead]);
      parts.push_back({from, bytes, Receive(bytes, from)});
    }
  };
  post();
  std::vector<Buffer> sent;
  for (int i = 1; i < size(); ++i) {
    const int to = Neighbour(i);
    if (Buffer buffer = Send(exchange.outgoing(to), to)) sent.push_back(std::move(buffer));
  }
  for (; !parts.empty(); post()) {
    const Part part = std::move(parts.front());
    parts.pop_front();
    if (part.buffer != nullptr) part.buffer->waitRecv();
    exchange.arrived(part.from, part.bytes);
  }
  for (const Buffer& buffer : sent) buffer->waitSend();
}

void Channel::Broadcast(std::span<std::byte> data, int root) const {
  if (size() == 1 || data.empty()) return;
  gloo::BroadcastOptions options(context_);
  options.setOutput(data.data(), data.size());
  options.setRoot(root);
  gloo::broadcast(options);
}

}  // namespace lathe
