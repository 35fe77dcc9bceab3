// Records what the ranks of a job do in one collective: who sends what to whom, in which order.
//
// The schedules are those of the group itself. Its Channel, with Gloo's algorithms below, runs over
// a transport that notes each transfer and moves nothing. MachineLayout and ChannelMessages say
// which parts travel. What a rank does never depends on when a message comes, so one rank after the
// other can be recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/groups/machine_layout.h"

namespace lathe::simulator {

// One thing that a rank does. Actions of a rank follow each other.
struct Action {
  enum class Kind : uint8_t {
    kMeet,          // waits for all ranks of its machine
    kMemory,        // goes through `bytes` of its machine's memory
    kSend,          // starts message number `message`
    kReceive,       // is ready to receive it
    kAwaitSend,     // waits until it has left
    kAwaitReceive,  // waits until it has arrived
  };
  Kind kind{};
  int32_t message = -1;
  int64_t bytes = 0;
};

struct Message {
  int32_t from = 0, to = 0;  // ranks
  int64_t bytes = 0;
};

struct RecordedCall {
  std::vector<std::vector<Action>> actions;  // of each rank
  std::vector<Message> messages;

  // Returns the bytes that a machine sends to others.
  int64_t BytesSent(const MachineLayout& layout, int machine) const;
};

// Each returns a call of the process group, with float32 elements.
RecordedCall RecordAllReduce(const MachineLayout& layout, int64_t num_elements);
RecordedCall RecordReduceScatter(const MachineLayout& layout, int64_t num_elements);
// `ranges` as in ProcessGroup::AllGatherStripes; all elements have changed.
RecordedCall RecordAllGatherStripes(const MachineLayout& layout,
                                    const std::vector<ElementRange>& ranges);
RecordedCall RecordAllGather(const MachineLayout& layout, int64_t bytes_of_each);
RecordedCall RecordBroadcast(const MachineLayout& layout, int64_t bytes, int root);
RecordedCall RecordBarrier(const MachineLayout& layout);

// Returns the number of connections between machines: in all, and of the rank that has most.
struct Connections {
  int64_t all = 0, most = 0;
};
Connections CountConnections(const MachineLayout& layout);

// Returns the layout of machines with these numbers of ranks.
MachineLayout LayoutOf(const std::vector<int>& machines);

}  // namespace lathe::simulator
