// What a rank sends of a flat buffer: its stripes of some ranges, where they have changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/groups/machine_layout.h"

namespace lathe {

// Elements of type T travel as type Wire.
template <typename T, typename Wire = T>
class StripeMessage {
 public:
  // The message of rank `rank`. A negative rank sends nothing.
  StripeMessage(const std::vector<ElementRange>& ranges, const std::vector<ElementRange>& changed,
                int rank, int num_ranks) {
    for (size_t i = 0; rank >= 0 && i < ranges.size(); ++i) {
      for (const ElementRange& piece :
           Intersection(StripeOfRank(ranges[i], rank, num_ranks), changed)) {
        pieces_.push_back(piece);
        num_elements_ += static_cast<size_t>(piece.size());
      }
    }
  }

  size_t num_elements() const { return num_elements_; }
  // Returns the message of the elements in `data`. It is made in `buffer`, unless the elements can
  // travel as they lie.
  std::span<const std::byte> Pack(T* data, std::vector<std::byte>& buffer) const {
    const std::span<std::byte> message = Room(data, buffer);
    ForEach(message.data(), [&](const ElementRange& piece, Wire* wire) {
      std::transform(data + piece.begin, data + piece.end, wire, [](T x) { return Wire(x); });
    });
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
    ForEach(const_cast<std::byte*>(message.data()), [&](const ElementRange& piece, Wire* wire) {
      std::transform(wire, wire + piece.size(), data + piece.begin, [](Wire x) { return T(x); });
    });
  }

 private:
  bool IsInPlace() const { return std::is_same_v<T, Wire> && pieces_.size() == 1; }
  // Calls `copy` with each piece and its place in the message, unless the message is in place.
  template <typename Copy>
  void ForEach(std::byte* message, const Copy& copy) const {
    if (IsInPlace()) return;
    auto* wire = reinterpret_cast<Wire*>(message);
    for (const ElementRange& piece : pieces_) {
      copy(piece, wire);
      wire += piece.size();
    }
  }
  std::vector<ElementRange> pieces_;
  size_t num_elements_ = 0;
};

// Returns what each machine sends through a channel: its rank's stripes at the channel's place.
template <typename T, typename Wire>
std::vector<StripeMessage<T, Wire>> ChannelMessages(const MachineLayout& layout, int channel,
                                                    const std::vector<ElementRange>& ranges,
                                                    const std::vector<ElementRange>& changed) {
  std::vector<StripeMessage<T, Wire>> messages;
  for (int machine = 0; machine < layout.num_machines(); ++machine)
    messages.emplace_back(ranges, changed, layout.RankAt(machine, channel), layout.num_ranks());
  return messages;
}

}  // namespace lathe
