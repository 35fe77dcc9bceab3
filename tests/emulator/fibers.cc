// Runs the blocks and threads of emulated kernels.
#include <cuda_runtime.h>

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {

Thread* current = nullptr;

namespace {

namespace context = boost::context;

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "emulator: %s\n", what.c_str());
  std::abort();
}

struct Warp {
  uint64_t brought[2][kWarp] = {};
  bool present[2][kWarp] = {};
  unsigned arrived = 0, live = 0;
  uint64_t round = 0;
};

struct Fiber : Thread {
  context::fiber self, scheduler;
  unsigned number = 0;
  bool done = false;
  std::function<bool()> may_go;  // what it waits for; null: nothing
};

struct Block {
  const char* kernel = "";
  std::vector<std::unique_ptr<Fiber>> threads;
  std::vector<Warp> warps;
  unsigned live = 0, arrived = 0;
  uint64_t round = 0;
  std::unique_ptr<unsigned char[]> dynamic_shared;
};

Block* block = nullptr;
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

void WaitUntil(std::function<bool()> may_go) {
  Fiber& self = Self();
  if (may_go()) return;
  self.may_go = std::move(may_go);
  self.scheduler = std::move(self.scheduler).resume();
}

// Gives each of these threads a turn: it runs until it has to wait. Returns true if any could run.
bool RunThreads(const std::vector<size_t>& threads) {
  bool any = false;
  for (const size_t i : threads) {
    Fiber& fiber = *block->threads[i];
    if (fiber.done || (fiber.may_go && !fiber.may_go())) continue;
    fiber.may_go = nullptr;
    any = true;
    current = &fiber;
    fiber.self = std::move(fiber.self).resume();
    if (!fiber.done) continue;
    --block->live;
    --block->warps[fiber.number / kWarp].live;
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
  while (block->live > 0) {
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

}  // namespace

void RunKernel(const char* name, dim3 grid, dim3 size, size_t dynamic_shared,
               const std::function<void()>& body) {
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
  static context::pooled_fixedsize_stack stacks(kStackBytes);
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  for (const size_t at : OrderOf(blocks)) {
    Block now;
    now.kernel = name;
    now.warps.resize(threads / kWarp);
    now.live = static_cast<unsigned>(threads);
    now.dynamic_shared = std::make_unique<unsigned char[]>(dynamic_shared);
    std::memset(now.dynamic_shared.get(), 0xff, dynamic_shared);
    SpoilStaticShared();
    block = &now;
    const unsigned x = static_cast<unsigned>(at % grid.x);
    const unsigned y = static_cast<unsigned>(at / grid.x % grid.y);
    const unsigned z = static_cast<unsigned>(at / grid.x / grid.y);
    for (unsigned i = 0; i < threads; ++i) {
      auto fiber = std::make_unique<Fiber>();
      fiber->thread_index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      fiber->block_index = {x, y, z};
      fiber->block_size = size;
      fiber->grid_size = grid;
      fiber->number = i;
      ++now.warps[i / kWarp].live;
      Fiber* self = fiber.get();
      fiber->self =
          context::fiber(std::allocator_arg, stacks, [self, &body](context::fiber&& scheduler) {
            self->scheduler = std::move(scheduler);
            body();
            self->done = true;
            return std::move(self->scheduler);
          });
      now.threads.push_back(std::move(fiber));
    }
    RunBlock(OrderOf(threads));
    block = nullptr;
    current = nullptr;
  }
}

bool ComesEarly() {
  return wanted_order == Order::kReverse ||
         (wanted_order == Order::kRandom && Generator()() % 2 == 0);
}

void* DynamicShared() { return block->dynamic_shared.get(); }

unsigned Lane() { return Self().number % kWarp; }

void SyncThreads() {
  Block& b = *block;
  const uint64_t round = b.round;
  ++b.arrived;
  // The first thread that sees all of them here releases them. Threads that have returned don't
  // count.
  WaitUntil([&b, round] {
    if (b.round == round && b.arrived == b.live) {
      ++b.round;
      b.arrived = 0;
    }
    return b.round != round;
  });
}

const uint64_t* ExchangeInWarp(unsigned mask, uint64_t mine, bool* present) {
  Warp& warp = block->warps[Self().number / kWarp];
  if ((mask >> Lane() & 1) == 0) Fail(std::string(block->kernel) + ": a lane outside of its mask");
  const uint64_t round = warp.round;
  const size_t slot = round % 2;
  warp.brought[slot][Lane()] = mine;
  warp.present[slot][Lane()] = true;
  ++warp.arrived;
  WaitUntil([&warp, round, slot] {
    if (warp.round == round && warp.arrived == warp.live) {
      ++warp.round;
      warp.arrived = 0;
      // Nobody reads the other slot any more.
      std::fill_n(warp.brought[1 - slot], kWarp, uint64_t{0});
      std::fill_n(warp.present[1 - slot], kWarp, false);
    }
    return warp.round != round;
  });
  std::copy_n(warp.present[slot], kWarp, present);
  return warp.brought[slot];
}

int64_t NumLaunches() { return launches; }

}  // namespace lathe::emulator
