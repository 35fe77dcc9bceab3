#include "lathe/core/checkpoint/state_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

std::string Path(const std::string& name) {
  const std::string dir = testing::TempDir() + "state_file_test";
  std::filesystem::create_directories(dir);
  return dir + "/" + name;
}

StateDict SomeState() {
  StateDict state;
  state.values = {{"rate", 0.1}, {"third", 1.0 / 3}, {"steps", int64_t{1} << 60}};
  std::vector<float> large(600000);  // more than two chunks
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<float>(i) / 7;
  state.Add("m/layer.0.weight", Tensor::FromVector(large, {3000, 200}));
  // Rows that take several chunks, and chunks of whole and of parts of rows in three dimensions.
  state.Add("wide", Tensor::FromVector(large, {2, 300000}));
  state.Add("cube", Tensor::FromVector(large, {2, 500, 600}));
  state.Add("m/layer.0.bias", Tensor::FromVector<float>({1, -0.0f, 3}));
  state.Add("scalar", Tensor::Full({}, 2.5));
  state.Add("counts", Tensor::FromVector<int64_t>({-1, int64_t{1} << 62}));
  state.tensors.push_back({"v/layer.0.weight", Tensor::FromVector<float>({5, 6, 7}), {4, 3}, 6});
  return state;
}

TEST(StateFileTest, KeepsEveryBit) {
  const StateDict state = SomeState();
  WriteStateFile(Path("state.h5"), state);
  const StateDict read = ReadStateFile(Path("state.h5"));
  EXPECT_EQ(read.values, state.values);
  ASSERT_EQ(read.tensors.size(), state.tensors.size());
  for (const StateTensor& expected : state.tensors) {
    const auto found = std::find_if(read.tensors.begin(), read.tensors.end(),
                                    [&](const auto& t) { return t.name == expected.name; });
    ASSERT_NE(found, read.tensors.end()) << expected.name;
    EXPECT_EQ(found->shape, expected.shape) << expected.name;
    EXPECT_EQ(found->begin, expected.begin);
    ASSERT_EQ(found->values.dtype(), expected.values.dtype());
    ASSERT_EQ(found->values.numel(), expected.values.numel());
    EXPECT_EQ(std::memcmp(found->values.raw_data(), expected.values.raw_data(),
                          static_cast<size_t>(expected.values.bytes())),
              0)
        << expected.name;
  }
}

TEST(StateFileTest, TheSameStateGivesTheSameBytes) {
  WriteStateFile(Path("first.h5"), SomeState());
  WriteStateFile(Path("second.h5"), SomeState());
  EXPECT_EQ(ReadFile(Path("first.h5")), ReadFile(Path("second.h5")));
}

// The best value so far usually begins as infinity.
TEST(StateFileTest, KeepsNumbersThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  StateDict state;
  state.values = {{"best", kInfinity}, {"past", {{"a/b", {1.5, -kInfinity}}}}, {"x", std::nan("")}};
  WriteStateFile(Path("infinite.h5"), state);
  const StateDict read = ReadStateFile(Path("infinite.h5"));
  EXPECT_EQ(read.Get<double>("progress", "best"), kInfinity);
  EXPECT_EQ(read.values.at("past"), state.values.at("past"));
  EXPECT_TRUE(std::isnan(read.Get<double>("progress", "x")));
}

TEST(StateFileTest, RefusesToWriteWhatWouldNotComeBack) {
  const auto reason = [](const StateDict& state) -> std::string {
    try {
      WriteStateFile(Path("refused.h5"), state);
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  StateDict state;
  state.values = nullptr;
  EXPECT_EQ(reason(state), "no error");
  EXPECT_EQ(ReadStateFile(Path("refused.h5")).values, nlohmann::json::object());
  state.values = {1, 2};
  EXPECT_EQ(
      reason(state),
      Path("refused.h5") + ": the values of a state must be a JSON object but are of type array");
  for (const std::string& name : {std::string(""), std::string("a\0b", 3), std::string("a//b"),
                                  std::string("/a"), std::string("a/"), std::string("./a")}) {
    StateDict named;
    named.Add(name, Tensor::FromVector<float>({1}));
    EXPECT_TRUE(
        reason(named).starts_with(Path("refused.h5") + ": a tensor of the state has the name "))
        << name;
  }
}

TEST(StateFileTest, NoticesChangedNumbers) {
  WriteStateFile(Path("changed.h5"), SomeState());
  std::string bytes = ReadFile(Path("changed.h5"));
  bytes[bytes.size() / 2] ^= 1;  // in the middle of the large tensor
  WriteFileAtomically(Path("changed.h5"), bytes);
  EXPECT_THROW(ReadStateFile(Path("changed.h5")), Error);
}

// The sizes of a part's whole tensor are numbers in the file, which can be any.
TEST(StateFileTest, RefusesShapesThatMakeNoSense) {
  const auto reason = [](const Shape& shape, int64_t begin) -> std::string {
    StateDict state;
    state.tensors.push_back({"part", Tensor::FromVector<float>({1, 2}), shape, begin});
    WriteStateFile(Path("shape.h5"), state);
    try {
      ReadStateFile(Path("shape.h5"));
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  const std::string damaged = Path("shape.h5") + ": is damaged or no file of a state: ";
  EXPECT_EQ(reason({4}, 2), "no error");
  EXPECT_EQ(reason({4}, 3), damaged + "\"part\" has elements outside of its shape");
  EXPECT_EQ(reason({4}, INT64_MAX), damaged + "\"part\" has elements outside of its shape");
  EXPECT_EQ(reason({4}, -1), damaged + "\"part\" has elements outside of its shape");
  EXPECT_EQ(reason({int64_t{1} << 41, 4}, 0), damaged + "\"part\" has an impossible shape");
  EXPECT_EQ(reason({-4, -4}, 0), damaged + "\"part\" has an impossible shape");
}

TEST(StateFileTest, ErrorsNameTheFile) {
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  EXPECT_EQ(message([] { ReadStateFile(Path("missing.h5")); }),
            Path("missing.h5") + ": No such file or directory");
  EXPECT_EQ(message([] { WriteStateFile(Path("no/folder.h5"), {}); }),
            Path("no/folder.h5") + ": No such file or directory");
  WriteFileAtomically(Path("text.h5"), "no HDF5");
  EXPECT_NE(message([] { ReadStateFile(Path("text.h5")); }).find("text.h5: is damaged"),
            std::string::npos);
  EXPECT_EQ(message([] { WriteStateFile("/dev/full", SomeState()); }),
            "/dev/full: No space left on device");
}

// What ReadStateFile would refuse must not be written.
TEST(StateFileTest, ValuesThatJsonCannotHoldAreErrors) {
  const auto reason = [](const char* key, const nlohmann::json& value) -> std::string {
    StateDict state;
    state.values = {{"a", 1}};
    state.values[key] = value;
    try {
      WriteStateFile(Path("values.h5"), state);
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  const std::string file = Path("values.h5") + ": ";
  EXPECT_EQ(reason("name", "good"), "no error");
  EXPECT_EQ(reason("name", "\xff"),
            file + "\"name\" of the state can't be written: invalid UTF-8 byte at index 0: 0xFF");
  EXPECT_TRUE(reason("k\xff", 1).starts_with(file + "\"k\xef\xbf\xbd\" of the state"));
  nlohmann::json deep;
  for (int i = 0; i < 300; ++i) deep = nlohmann::json::array({deep});
  EXPECT_EQ(reason("deep", deep), file + "the JSON is nested more than 200 levels deep");
}

TEST(StateDictTest, CopiesUseTheirMemoryAgain) {
  StateDict state = SomeState(), copy;
  CopyState(state, copy);
  const void* const address = copy.tensors[0].values.raw_data();
  state.tensors[0].values.Fill(3);
  EXPECT_NE(copy.tensors[0].values.ToVector<float>()[1], 3);
  CopyState(state, copy);
  EXPECT_EQ(copy.tensors[0].values.ToVector<float>()[1], 3);
  EXPECT_EQ(copy.tensors[0].values.raw_data(), address);
  EXPECT_EQ(copy.tensors.back().begin, 6);
}

TEST(StateDictTest, MissingAndWrongValuesAreErrors) {
  const StateDict state = SomeState();
  EXPECT_EQ(state.Get<double>("optimizer", "rate"), 0.1);
  EXPECT_THROW(state.Get<double>("optimizer", "other"), Error);
  EXPECT_THROW(state.Get<std::string>("optimizer", "rate"), Error);
}

}  // namespace
}  // namespace lathe
