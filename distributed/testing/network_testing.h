// Machines for tests that are network namespaces. To make them takes the rights of root.
#pragma once

#include <string>

namespace lathe {

// Runs a command of the shell without a word. Returns true if it succeeds.
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
  static std::string Address(int machine) { return "192.168.78." + std::to_string(machine + 1); }
  // Moves this process to the machine.
  static void Enter(int machine);
  // Returns the bytes that this process's machine has sent.
  static double BytesSent();

 protected:
  // Returns the name of the machine's namespace; -1: of one without a rank.
  static std::string Name(int machine);
  // Gives the machine's network card, "card", its address.
  static bool StartCard(int machine);
  const int num_machines_;
  bool works_ = false;
};

}  // namespace lathe
