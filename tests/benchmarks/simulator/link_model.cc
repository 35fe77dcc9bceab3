#include "lathe/tests/benchmarks/simulator/link_model.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <stdexcept>
#include <vector>

namespace lathe::simulator {
namespace {

using Kind = Action::Kind;

constexpr double kNever = -1;

class Simulation {
 public:
  Simulation(const RecordedCall& call, const MachineLayout& layout, const LinkModel& model)
      : call_(call),
        layout_(layout),
        model_(model),
        bytes_per_second_(model.bits_per_second / 8 * model.payload_share),
        ranks_(call.actions.size()),
        machines_(static_cast<size_t>(layout.num_machines())),
        transfers_(call.messages.size()) {}

  double Run() {
    for (int rank = 0; rank < std::ssize(ranks_); ++rank) Continue(rank, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.kind) {
        case Event::kReady:
          Enqueue(event.index, event.time);
          break;
        case Event::kLinkIsFree:
          machines_[static_cast<size_t>(event.index)].is_sending = false;
          ServeLink(event.index, event.time);
          break;
        case Event::kArrival:
          Arrive(event.index, event.bytes, event.time);
          break;
      }
    }
    double end = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next < call_.actions[rank].size())
        throw std::logic_error("rank " + std::to_string(rank) + " waits without end");
      end = std::max(end, ranks_[rank].time);
    }
    return end;
  }

 private:
  struct Rank {
    double time = 0;
    size_t next = 0;  // number of its next action
  };
  struct Machine {
    std::deque<int32_t> sending;  // the messages that its link carries in turns
    bool is_sending = false;
    double link_in_is_free = 0;
    int num_waiting = 0;  // ranks that have come to the present meeting
    double meeting = 0;   // the time of the last of them
  };
  struct Transfer {
    double send = kNever, receive = kNever;  // when its ends began
    double sent = kNever, received = kNever;
    int64_t bytes_sent = 0, bytes_received = 0;
    bool is_awaited_by_sender = false, is_awaited_by_receiver = false;
  };
  struct Event {
    enum Kind : uint8_t { kReady, kLinkIsFree, kArrival };
    double time;
    Kind kind;
    int32_t index;  // of the message, or of the machine
    int64_t bytes = 0;
    int64_t number = 0;
    // Events of the same time happen in the order in which they were made.
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  void Push(Event event) {
    event.number = num_events_++;
    events_.push(event);
  }
  Transfer& TransferOf(const Action& action) {
    return transfers_[static_cast<size_t>(action.message)];
  }

  // Goes on with a rank's actions until it has to wait.
  void Continue(int rank, double time) {
    Rank& self = ranks_[static_cast<size_t>(rank)];
    self.time = std::max(self.time, time);
    const std::vector<Action>& actions = call_.actions[static_cast<size_t>(rank)];
    while (self.next < actions.size()) {
      const Action& action = actions[self.next];
      switch (action.kind) {
        case Kind::kMemory: {
          const auto num_local = std::ssize(layout_.RanksOf(layout_.MachineOf(rank)));
          self.time += static_cast<double>(action.bytes) * static_cast<double>(num_local) /
                       model_.memory_per_second;
          break;
        }
        case Kind::kMeet:
          ++self.next;
          return Meet(rank, self.time);
        case Kind::kSend:
          self.time += model_.message_seconds;
          TransferOf(action).send = self.time;
          StartIfReady(action.message);
          break;
        case Kind::kReceive:
          TransferOf(action).receive = self.time;
          StartIfReady(action.message);
          break;
        case Kind::kAwaitSend: {
          Transfer& transfer = TransferOf(action);
          if (transfer.sent == kNever) {
            transfer.is_awaited_by_sender = true;
            return;
          }
          self.time = std::max(self.time, transfer.sent);
          break;
        }
        case Kind::kAwaitReceive: {
          Transfer& transfer = TransferOf(action);
          if (transfer.received == kNever) {
            transfer.is_awaited_by_receiver = true;
            return;
          }
          self.time = std::max(self.time, transfer.received) + model_.message_seconds;
          break;
        }
      }
      ++self.next;
    }
  }

  void Meet(int rank, double time) {
    Machine& machine = machines_[static_cast<size_t>(layout_.MachineOf(rank))];
    machine.meeting = std::max(machine.meeting, time);
    const std::vector<int>& ranks = layout_.RanksOf(layout_.MachineOf(rank));
    if (++machine.num_waiting < std::ssize(ranks)) return;
    machine.num_waiting = 0;
    const double end = machine.meeting + model_.meeting_seconds;
    machine.meeting = 0;
    for (const int other : ranks) Continue(other, end);
  }

  // The receiver's answer, or the sender's announcement, takes the link's latency.
  void StartIfReady(int32_t message) {
    const Transfer& transfer = transfers_[static_cast<size_t>(message)];
    if (transfer.send == kNever || transfer.receive == kNever) return;
    Push({.time = std::max(transfer.send, transfer.receive + model_.latency),
          .kind = Event::kReady,
          .index = message});
  }

  void Enqueue(int32_t message, double time) {
    const int machine = layout_.MachineOf(call_.messages[static_cast<size_t>(message)].from);
    machines_[static_cast<size_t>(machine)].sending.push_back(message);
    ServeLink(machine, time);
  }

  void ServeLink(int index, double time) {
    Machine& machine = machines_[static_cast<size_t>(index)];
    if (machine.is_sending || machine.sending.empty()) return;
    const int32_t number = machine.sending.front();
    machine.sending.pop_front();
    const Message& message = call_.messages[static_cast<size_t>(number)];
    Transfer& transfer = transfers_[static_cast<size_t>(number)];
    const int64_t bytes = std::min(message.bytes - transfer.bytes_sent, model_.bytes_of_turn);
    transfer.bytes_sent += bytes;
    machine.is_sending = true;
    const double end = time + static_cast<double>(bytes) / bytes_per_second_;
    Push({.time = end, .kind = Event::kLinkIsFree, .index = index});
    // The first bit arrives after the latency, and the last one with the speed of the link.
    Push({.time = time + model_.latency, .kind = Event::kArrival, .index = number, .bytes = bytes});
    if (transfer.bytes_sent < message.bytes) {
      machine.sending.push_back(number);
      return;
    }
    transfer.sent = end;
    if (transfer.is_awaited_by_sender) Continue(message.from, end);
  }

  void Arrive(int32_t number, int64_t bytes, double time) {
    const Message& message = call_.messages[static_cast<size_t>(number)];
    Transfer& transfer = transfers_[static_cast<size_t>(number)];
    Machine& machine = machines_[static_cast<size_t>(layout_.MachineOf(message.to))];
    machine.link_in_is_free =
        std::max(machine.link_in_is_free, time) + static_cast<double>(bytes) / bytes_per_second_;
    transfer.bytes_received += bytes;
    if (transfer.bytes_received < message.bytes) return;
    transfer.received = machine.link_in_is_free;
    if (transfer.is_awaited_by_receiver) Continue(message.to, transfer.received);
  }

  const RecordedCall& call_;
  const MachineLayout& layout_;
  const LinkModel& model_;
  const double bytes_per_second_;
  std::vector<Rank> ranks_;
  std::vector<Machine> machines_;
  std::vector<Transfer> transfers_;
  std::priority_queue<Event> events_;
  int64_t num_events_ = 0;
};

}  // namespace

double SecondsOf(const RecordedCall& call, const MachineLayout& layout, const LinkModel& model) {
  return Simulation(call, layout, model).Run();
}

}  // namespace lathe::simulator
