// How ToDevice finds the parts of a batch. tests/accelerator_on_device_test.cc moves tensors.
#include "lathe/data/loading/to_device.h"

#include <gtest/gtest.h>

#include "lathe/data/loading/data_loader.h"
#include "lathe/data/loading/tensor_batch.h"

namespace lathe {
namespace {

constexpr Device kOther = {DeviceType::kCUDA, 3};

// Stands for a tensor: it only remembers where it was brought.
struct Part {
  Device device = {};
  Part To(Device other) const { return {other}; }
};

TEST(ToDevice, MovesEachPart) {
  EXPECT_EQ(ToDevice(Part(), kOther).device, kOther);
  const auto [number, part, pair] =
      ToDevice(std::tuple(7, Part(), std::pair(std::string("text"), Part())), kOther);
  EXPECT_EQ(number, 7);
  EXPECT_EQ(part.device, kOther);
  EXPECT_EQ(pair.first, "text");
  EXPECT_EQ(pair.second.device, kOther);
  for (const Part& each : ToDevice(std::array<Part, 2>(), kOther)) EXPECT_EQ(each.device, kOther);
  const auto rows = ToDevice(std::vector<std::vector<Part>>{{}, {Part(), Part()}}, kOther);
  ASSERT_EQ(rows.size(), 2u);
  ASSERT_EQ(rows[1].size(), 2u);
  EXPECT_EQ(rows[1][1].device, kOther);
  EXPECT_EQ(ToDevice(std::vector<bool>{true, false}, kOther), (std::vector<bool>{true, false}));
  EXPECT_EQ(ToDevice(std::map<std::string, Part>{{"a", {}}}, kOther).at("a").device, kOther);
  EXPECT_EQ(ToDevice(std::unordered_map<int, Part>{{1, {}}}, kOther).at(1).device, kOther);
  EXPECT_EQ(ToDevice(std::optional(Part()), kOther)->device, kOther);
  EXPECT_FALSE(ToDevice(std::optional<Part>(), kOther));
}

TEST(ToDevice, LeavesTensorsThatAreThere) {
  const Tensor x = Tensor::FromVector<float>({1, 2});
  const auto moved = ToDevice(std::pair(x, Tensor()), Device{});
  EXPECT_EQ(moved.first.impl(), x.impl());
  EXPECT_FALSE(moved.second.defined());
  TensorBatch<2> batch(x, Tensor());
  batch.step = 5;
  const TensorBatch<2> same = ToDevice(batch, Device{});
  EXPECT_EQ(same[0].impl(), x.impl());
  EXPECT_EQ(same.step, 5);
}

struct Untold {
  Tensor tensor;
};
struct Slicing : Part {  // To gives back the base alone
  Tensor tensor;
};
struct OnHost {
  static constexpr bool kStaysOnHost = true;
  OnHost To(Device) const { return *this; }
};

// A call with a type that would stay behind must not compile.
static_assert(MovableToDevice<TensorBatch<1>>);
static_assert(!MovableToDevice<Untold>);
static_assert(!MovableToDevice<Slicing>);
static_assert(!MovableToDevice<std::pair<Tensor, Untold>>);
static_assert(!MovableToDevice<std::vector<Untold>>);
static_assert(!MovableToDevice<const char*>);
static_assert(kLoaderMoves<std::tuple<Tensor, std::string>>);
static_assert(!kLoaderMoves<Untold>);
static_assert(MovableToDevice<OnHost> && !kLoaderMoves<OnHost>);

struct Numbers : Dataset<int64_t> {
  int64_t Size() const override { return 4; }
  int64_t Get(int64_t i) const override { return i; }
};

TEST(ToDevice, LoadersMoveBatchesOfAnyType) {
  DataLoader loader(Numbers(), {.batch_size = 2}, [](const std::vector<int64_t>& all) {
    return std::pair(Part(), static_cast<int64_t>(all.size()));
  });
  for (const auto& [part, size] : loader) EXPECT_EQ(part.device, Device{});
  loader.SetDevice(kOther);
  for (const auto& [part, size] : loader) {
    EXPECT_EQ(part.device, kOther);
    EXPECT_EQ(size, 2);
  }
}

}  // namespace
}  // namespace lathe
