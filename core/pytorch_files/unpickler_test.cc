// What pickles may hold. pytorch_file_test.cc has the tests of the forms of files and of tensors.
#include "lathe/core/pytorch_files/unpickler.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "lathe/core/pytorch_files/pytorch_file.h"
#include "lathe/core/pytorch_files/torch_save_testing.h"
#include "lathe/core/weight_files/weight_file_testing.h"

namespace lathe {
namespace {

using torch_save::Bytes;
using torch_save::Dict;
using torch_save::Function;
using torch_save::Integer;
using torch_save::OldForm;
using torch_save::Pickle;
using torch_save::Storage;
using torch_save::TensorOf;
using torch_save::Text;
using torch_save::ZipForm;

const std::string kFloats = Bytes<float>({1, 2, 3, 4, 5, 6});
const std::string kWeight = TensorOf(Storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1});

class UnpicklerTest : public WeightFileTest {
 protected:
  UnpicklerTest() : WeightFileTest("pytorch_model.bin", ReadPyTorchFile) {}
  // Returns the message for a file whose pickle holds this value.
  std::string RefusalOf(const std::string& value) {
    return Refusal(ZipForm(Pickle(value), {{"0", kFloats}}));
  }
};

std::string Repeated(const std::string& part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}

TEST_F(UnpicklerTest, RefusesFunctionsByName) {
  EXPECT_EQ(RefusalOf(Function("posix", "system") + "(" + Text("touch /tmp/x") + "tR"),
            "needs \"posix.system\", which no plain file of weights needs; Lathe runs no code of a "
            "file");
  EXPECT_NE(RefusalOf(Text("builtins") + Text("eval") + "\x93").find("\"builtins.eval\""),
            std::string::npos);
  EXPECT_NE(RefusalOf(Function("a\x1b[31m", "b\x7f")).find("\"a?[31m.b?\""), std::string::npos);
  EXPECT_EQ(RefusalOf(Function("torch", "FloatStorage") + ")R"),
            "its pickle calls what is no function");
  EXPECT_EQ(RefusalOf(Integer(1) + ")R"), "its pickle calls what is no function");
  EXPECT_EQ(RefusalOf(kWeight), "holds no state dict");
  EXPECT_EQ(Refusal(OldForm(Pickle(Function("os", "remove")), {}, {})).substr(0, 17),
            "needs \"os.remove\"");
}

// Python's pickle.dumps writes the values with these operations.
TEST_F(UnpicklerTest, RefusesOtherKindsOfValuesByName) {
  const auto pickle_with = [](const std::string& value) {
    return Pickle(Dict({{"weight", kWeight}, {"other", value}}));
  };
  const auto error_with = [&](const std::string& value) {
    try {
      Read(ZipForm(pickle_with(value), {{"0", kFloats}}));
    } catch (const Error& error) {
      return error;
    }
    return Error(absl::StatusCode::kOk, "");
  };
  const std::pair<std::string, const char*> cases[] = {
      {"\x8f\x94(K\x01K\x02\x90", "a set"},
      {"(K\x01\x91\x94", "a frozenset"},
      {std::string("B\x03\0\0\0", 5) + "abc", "bytes"},
      {"C\x03xyz", "bytes"},
      {std::string("\x8e\x03\0\0\0\0\0\0\0", 9) + "abc", "bytes"},
      {std::string("\x96\x02\0\0\0\0\0\0\0", 9) + "ab", "a bytearray"},
      {std::string("\x8bx\x01\0\0", 5) + std::string(375, '\0') + "\x01",
       "an integer of more than 255 bytes"},
      {std::string("\x8d\0\0\0\0\x01\0\0\0", 9), "a string of 4 GiB or more"},
      {std::string("(K\x01K\x02K\x03K\x04tq\x01") + "1h\x01", "a tuple that holds itself"},
      {Function("collections", "OrderedDict") + ")\x81", "an object of a class"},
      {Function("collections", "OrderedDict") + ")}\x92", "an object of a class"},
      {"\x82\x01", "an object of the registry copyreg"},
      {"\x97", "a buffer that lies outside of it"},
      {"I01\n", "a value of protocol 0 or 1"},
  };
  for (const auto& [value, kind] : cases) {
    const Error error = error_with(value);
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << kind;
    const std::string refusal =
        std::string("its pickle holds ") + kind + ", which no plain file of weights needs";
    EXPECT_EQ(error.message(), file_ + ": " + refusal);
    EXPECT_EQ(Refusal(OldForm(pickle_with(value), {{"0", kFloats}}, {6})), refusal);
    EXPECT_NE(error.hint().find("save a dict of its tensors alone by torch.save"),
              std::string::npos);
  }
  // No pickle has these bytes as operations.
  for (const char* op : {"\xff", "A", "\x99", "\x1b"}) {
    const Error error = error_with(op);
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(error.message().find("its pickle has the unknown operation"), std::string::npos);
    EXPECT_NE(error.hint().find("the file is damaged"), std::string::npos);
  }
}

// torch.load reads such files, so they are not damaged.
TEST_F(UnpicklerTest, LimitsAreNoDamage) {
  const std::string levels = Repeated("]", 150) + Repeated("a", 149);
  for (const std::string& value : {levels, Repeated("N0", 1'000'001)}) {
    try {
      Read(ZipForm(Pickle(Dict({{"weight", kWeight}, {"other", value}})), {{"0", kFloats}}));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << error.what();
      EXPECT_NE(error.hint().find("save a dict of its tensors alone by torch.save"),
                std::string::npos);
    }
  }
}

TEST_F(UnpicklerTest, RefusesBombs) {
  const std::string deep = "its pickle is nested more than 100 levels deep";
  EXPECT_EQ(RefusalOf(Repeated("(", 101) + Repeated("t", 101)), deep);
  EXPECT_EQ(RefusalOf(")" + Repeated("\x85", 100)), deep);
  const std::string many = "its pickle has too many values";
  EXPECT_EQ(RefusalOf(Repeated("N", 1'000'001)), many);
  EXPECT_EQ(
      RefusalOf(")q" + std::string(1, '\0') + Repeated("h" + std::string(1, '\0'), 1'000'000)),
      many);
  // Each call would make as many items as the list has.
  const std::string pairs = "](" + Repeated(")0NN\x86", 1000) + "eq\x01" + "0";
  EXPECT_EQ(
      RefusalOf(pairs + Repeated(Function("collections", "OrderedDict") + "h\x01\x85R0", 6000)),
      many);
  EXPECT_EQ(RefusalOf("Nr\xff\xff\xff\x7f"), "its pickle has the memo number 2147483647");
  EXPECT_EQ(RefusalOf("X\xff\xff\xff\x7fx"), "its pickle is cut off");
  // A list that holds itself is no danger, since nothing walks it.
  EXPECT_EQ(RefusalOf("]q\x01h\x01" + std::string("a")), "holds no state dict");
}

// A file of a megabyte must not take minutes: the time grows with the file's size, not its square.
TEST_F(UnpicklerTest, ManyItemsThatAreAppendedAloneTakeNoTime) {
  constexpr int kItems = 400'000;
  const std::string none = "Nq\x01", get = "h\x01";  // None is the memo's number 1
  for (const std::string& value :
       {none + "0]" + Repeated(get + "a", kItems),           // one by one
        none + "0]" + Repeated("(" + get + "e", kItems),     // in runs of one
        none + "0}" + Repeated(get + get + "s", kItems)}) {  // in a dict
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(RefusalOf(value), "");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace lathe
