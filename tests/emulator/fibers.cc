// Runs the blocks and threads of emulated kernels.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "lathe/tests/emulator/emulator.h"

// Continues on the stack `to`, where an earlier call left it, and leaves its own in `*from`. It
// keeps the registers that a function must keep, but not the modes of floating point, which kernels
// don't change. Boost.Context keeps these, too: 110 ns instead of 5 on a Xeon.
extern "C" void LatheSwitchStacks(void** from, void* to);
asm(R"(
.text
.type LatheSwitchStacks, @function
LatheSwitchStacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size LatheSwitchStacks, .-LatheSwitchStacks
)");

namespace lathe::emulator {

Thread* current = nullptr;

namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kSavedRegisters = 6;
// Not a power of two: otherwise the tops of all stacks would share a few lines of the caches.
constexpr size_t kStackBytes = (128 << 10) + 17 * 64;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "emulator: %s\n", what.c_str());
  std::abort();
}

// A kernel and its arguments.
struct Call {
  RunThread run;
  const void* kernel;
  const void* arguments;
};

// A barrier of living threads, which is used again and again.
struct Barrier {
  unsigned live = 0, arrived = 0;
  uint64_t round = 0;  // the number of times that all came

  // Returns true if all living threads are here, and lets them go.
  bool Release() {
    if (arrived == 0 || arrived != live) return false;
    arrived = 0;
    ++round;
    return true;
  }
};

struct Warp {
  uint64_t brought[2][kWarp] = {};
  bool present[2][kWarp] = {};
  Barrier lanes;

  void Release() {
    const size_t other = (lanes.round + 1) % 2;
    if (!lanes.Release()) return;
    // Nobody reads the other slot any more.
    std::fill_n(brought[other], kWarp, uint64_t{0});
    std::fill_n(present[other], kWarp, false);
  }
};

// A thread of a block. Threads of later blocks run on the same fibers, because making one takes
// time.
struct Fiber : Thread {
  void* stack = nullptr;  // where it goes on
  const Call* call = nullptr;
  unsigned number = 0;
  bool done = false;
  const Barrier* barrier = nullptr;  // where it waits; null: nowhere
  uint64_t round = 0;                // the barrier's round in which it came there

  bool Waits() const { return barrier != nullptr && barrier->round == round; }
};

struct Block {
  const char* kernel = "";
  std::span<const std::unique_ptr<Fiber>> threads;
  std::vector<Warp> warps;
  Barrier all;
  unsigned char* dynamic_shared = nullptr;
};

Block* block = nullptr;
void* scheduler = nullptr;  // the stack of RunThreads
int64_t launches = 0;

enum class Order { kForward, kReverse, kRandom };
Order wanted_order = Order::kForward;  // LATHE_EMULATOR_ORDER at the kernel's launch

Order WantedOrder() {
  const char* wanted = std::getenv("LATHE_EMULATOR_ORDER");
  if (wanted == nullptr || std::string(wanted) == "forward") return Order::kForward;
  return std::string(wanted) == "reverse" ? Order::kReverse : Order::kRandom;
}

std::mt19937_64& Generator() {
  static std::mt19937_64 generator(std::strtoull(std::getenv("LATHE_EMULATOR_ORDER"), nullptr, 10));
  return generator;
}

// Returns the numbers below n in the wanted order.
std::vector<size_t> OrderOf(size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (wanted_order == Order::kReverse) std::reverse(order.begin(), order.end());
  if (wanted_order == Order::kRandom) std::shuffle(order.begin(), order.end(), Generator());
  return order;
}

Fiber& Self() { return static_cast<Fiber&>(*current); }

// Waits until the barrier's next round. The caller has counted itself as arrived.
void WaitAt(const Barrier& barrier, uint64_t round) {
  if (barrier.round != round) return;
  Fiber& self = Self();
  self.barrier = &barrier;
  self.round = round;
  LatheSwitchStacks(&self.stack, scheduler);
}

// Gives each of these threads a turn: it runs until it has to wait. Returns true if any could run.
bool RunThreads(const std::vector<size_t>& threads) {
  bool any = false;
  for (const size_t i : threads) {
    Fiber& fiber = *block->threads[i];
    if (fiber.done || fiber.Waits()) continue;
    fiber.barrier = nullptr;
    any = true;
    current = &fiber;
    LatheSwitchStacks(&scheduler, fiber.stack);
    if (!fiber.done) continue;
    // Barriers don't wait for threads that have returned.
    Warp& warp = block->warps[fiber.number / kWarp];
    --block->all.live;
    --warp.lanes.live;
    block->all.Release();
    warp.Release();
  }
  return any;
}

void RunBlock(const std::vector<size_t>& order) {
  // The parts take turns. A part is all threads, or a warp, which then runs for as long as it can.
  std::vector<std::vector<size_t>> parts;
  const bool by_warps = ComesEarly();
  if (by_warps) {
    std::vector<size_t> part_of(block->warps.size(), order.size());
    for (const size_t i : order) {
      size_t& part = part_of[i / kWarp];
      if (part == order.size()) {
        part = parts.size();
        parts.emplace_back();
      }
      parts[part].push_back(i);
    }
  } else {
    parts.push_back(order);
  }
  while (block->all.live > 0) {
    bool any = false;
    for (const std::vector<size_t>& part : parts) {
      while (RunThreads(part)) {
        any = true;
        if (!by_warps) break;
      }
    }
    if (!any) Fail(std::string(block->kernel) + ": threads wait for others that never come");
  }
}

// What a fiber does.
[[noreturn]] void RunBodies() {
  while (true) {
    Fiber& self = Self();
    self.call->run(self.call->kernel, self.call->arguments);
    self.done = true;
    LatheSwitchStacks(&self.stack, scheduler);
  }
}

// Returns at least n fibers, each of which does its `call` when it is resumed, and then is `done`.
// They and their stacks are never freed.
std::span<const std::unique_ptr<Fiber>> Fibers(size_t n) {
  static auto& fibers = *new std::vector<std::unique_ptr<Fiber>>;
  while (fibers.size() < n) {
    auto fiber = std::make_unique<Fiber>();
    fiber->number = static_cast<unsigned>(fibers.size());
    // From top to bottom, as if RunBodies had been called and would run its first instruction next:
    // where it would return to, where it goes on, and registers. A stack is aligned to 16 bytes.
    static_assert(kStackBytes % 16 == 0);
    void** const end = new void*[kStackBytes / sizeof(void*)] + kStackBytes / sizeof(void*);
    end[-1] = nullptr;
    end[-2] = reinterpret_cast<void*>(RunBodies);
    void** const registers = end - 2 - kSavedRegisters;
    std::fill_n(registers, kSavedRegisters, nullptr);
    fiber->stack = registers;
    fibers.push_back(std::move(fiber));
  }
  return fibers;
}

}  // namespace

void RunKernel(const char* name, const void* kernel, dim3 grid, dim3 size, size_t dynamic_shared,
               RunThread run, const void* arguments) {
  const Call call = {run, kernel, arguments};
  const size_t threads = size_t{size.x} * size.y * size.z;
  if (threads == 0 || threads > 1024 || threads % kWarp != 0) {
    Fail(std::string(name) + ": blocks of " + std::to_string(threads) + " threads");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
      grid.x > 0x7fffffff) {
    Fail(std::string(name) + ": a grid that no device takes");
  }
  if (dynamic_shared > SharedMemorySize()) {
    Fail(std::string(name) + ": " + std::to_string(dynamic_shared) +
         " bytes of shared memory, but the device has " + std::to_string(SharedMemorySize()));
  }
  ++launches;
  const DeviceAccess access;
  wanted_order = WantedOrder();
  const auto fibers = Fibers(threads).first(threads);
  const auto shared = std::make_unique_for_overwrite<unsigned char[]>(dynamic_shared);
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  for (const size_t at : OrderOf(blocks)) {
    Block now;
    now.kernel = name;
    now.threads = fibers;
    now.warps.resize(threads / kWarp);
    for (Warp& warp : now.warps) warp.lanes.live = kWarp;
    now.all.live = static_cast<unsigned>(threads);
    now.dynamic_shared = shared.get();
    std::memset(now.dynamic_shared, 0xff, dynamic_shared);
    SpoilStaticShared(kernel);
    block = &now;
    const unsigned x = static_cast<unsigned>(at % grid.x);
    const unsigned y = static_cast<unsigned>(at / grid.x % grid.y);
    const unsigned z = static_cast<unsigned>(at / grid.x / grid.y);
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& fiber = *fibers[i];
      fiber.thread_index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      fiber.block_index = {x, y, z};
      fiber.block_size = size;
      fiber.grid_size = grid;
      fiber.call = &call;
      fiber.done = false;
      fiber.barrier = nullptr;
    }
    RunBlock(OrderOf(threads));
    block = nullptr;
    current = nullptr;
  }
}

void LaunchKernel(const char* name, const void* kernel, dim3 grid, dim3 size, size_t dynamic_shared,
                  RunThread run, const void* arguments, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(arguments);
  DoOrRecord([=, kept = std::vector<std::byte>(first, first + bytes)] {
    RunKernel(name, kernel, grid, size, dynamic_shared, run, kept.data());
  });
}

bool ComesEarly() {
  return wanted_order == Order::kReverse ||
         (wanted_order == Order::kRandom && Generator()() % 2 == 0);
}

void* DynamicShared() { return block->dynamic_shared; }

unsigned Lane() { return Self().number % kWarp; }

void SyncThreads() {
  Barrier& all = block->all;
  const uint64_t round = all.round;
  ++all.arrived;
  all.Release();
  WaitAt(all, round);
}

const uint64_t* ExchangeInWarp(unsigned mask, uint64_t mine, bool* present) {
  Warp& warp = block->warps[Self().number / kWarp];
  if ((mask >> Lane() & 1) == 0) Fail(std::string(block->kernel) + ": a lane outside of its mask");
  const uint64_t round = warp.lanes.round;
  const size_t slot = round % 2;
  warp.brought[slot][Lane()] = mine;
  warp.present[slot][Lane()] = true;
  ++warp.lanes.arrived;
  warp.Release();
  WaitAt(warp.lanes, round);
  std::copy_n(warp.present[slot], kWarp, present);
  return warp.brought[slot];
}

int64_t NumLaunches() { return launches; }

}  // namespace lathe::emulator
