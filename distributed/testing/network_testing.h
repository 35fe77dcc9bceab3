// Machines for tests that are network namespaces. To make them takes the rights of root.
#pragma once

#include <cstdint>
#include <string>

namespace lathe {

// Runs a command of the shell and discards what it prints. Returns true if it succeeds.
bool Shell(const std::string& command);

// One namespace for each machine. Derived classes connect them.
class NetworkMachines {
 public:
  explicit NetworkMachines(int num_machines);
  ~NetworkMachines();
  NetworkMachines(const NetworkMachines&) = delete;
  NetworkMachines& operator=(const NetworkMachines&) = delete;

  // Returns false if they can't be made here.
  bool works() const { return works_; }
  // Returns the name of the machine's namespace; -1: of one without a rank.
  static std::string Name(int machine);
  // The addresses are above 127.0.0.1. The rank with the higher address connects to the other one.
  // With lower addresses, a rank that wrongly gives the loopback address would be the one that
  // connects, and nobody would notice.
  static std::string Address(int machine) { return "192.168.78." + std::to_string(machine + 1); }
  // Moves this process to the machine.
  static void Enter(int machine);
  // Returns the bytes that this process's machine has sent.
  static double BytesSent();

 protected:
  // Gives the machine's network card, "card", its address.
  static bool StartCard(int machine);
  const int num_machines_;
  bool works_ = false;
};

// Machines on a bridge, whose links have `bits_per_second` each way; 0: as many as they can.
class BridgedMachines : public NetworkMachines {
 public:
  explicit BridgedMachines(int num_machines, int64_t bits_per_second = 0);
};

}  // namespace lathe
