#include "lathe/core/safetensors/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / (std::string("safetensors_test_") + info->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    file_ = (dir_ / "model.safetensors").string();
  }
  void TearDown() override { fs::remove_all(dir_); }

  static std::string Bytes(uint64_t size, const std::string& rest) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &size, 8);
    return bytes + rest;
  }
  void WriteRaw(const std::string& header, const std::string& buffer) {
    WriteFileAtomically(file_, Bytes(header.size(), header + buffer));
  }
  template <typename F>
  static std::string MessageOf(F&& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.message();
    }
    return "nothing was thrown";
  }
  // Returns what the error of opening the file says after the file's name.
  std::string OpenError() {
    const std::string message = MessageOf([&] { SafetensorsReader reader(file_); });
    return message.starts_with(file_ + ": ") ? message.substr(file_.size() + 2) : message;
  }
  std::string HeaderError(const std::string& header, const std::string& buffer = "") {
    WriteRaw(header, buffer);
    return OpenError();
  }

  fs::path dir_;
  std::string file_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(SafetensorsTest, WritesTheReferenceWritersBytes) {
  Tensor scalar = Tensor::Empty({}, DType::kI64);
  scalar.data<int64_t>()[0] = 7;
  Tensor flags = Tensor::Empty({2}, DType::kBool);
  flags.data<bool>()[0] = true;
  flags.data<bool>()[1] = false;
  WriteSafetensors(file_, {{"b.weight", Tensor::FromVector<float>({0, 1, 2, 3, 4, 5}, {2, 3})},
                           {"a", scalar},
                           {"c", flags},
                           {"\xc3\xa9\"", Tensor::Empty({0, 4}, DType::kF16)},
                           {"b.bias", Tensor::FromVector<float>({1.5f})}});
  // The output of safetensors 0.8.0 (Python) for the same tensors.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("b.bias":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
      R"("b.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[12,36]},)"
      "\"\xc3\xa9\\\"\""
      R"(:{"dtype":"F16","shape":[0,4],"data_offsets":[36,36]},)"
      R"("c":{"dtype":"BOOL","shape":[2],"data_offsets":[36,38]}}     )";
  const float floats[] = {1.5f, 0, 1, 2, 3, 4, 5};
  std::string buffer = Bytes(7, "");
  buffer.append(reinterpret_cast<const char*>(floats), sizeof(floats));
  buffer += std::string("\1\0", 2);
  EXPECT_EQ(ReadFile(file_), Bytes(0x148, header + buffer));
}

TEST_F(SafetensorsTest, ReadsBackWhatItWrote) {
  WriteSafetensors(file_, {{"w", Tensor::FromVector<float>({1, -2, 3.5f, 0}, {2, 2})},
                           {"ids", Tensor::FromVector<int64_t>({5, -6})}});
  SafetensorsReader reader(file_);
  EXPECT_EQ(reader.entries().size(), 2u);
  EXPECT_EQ(reader.entries().at("w").dtype, "F32");
  EXPECT_EQ(reader.entries().at("w").file, file_);
  EXPECT_TRUE(reader.has("ids"));
  EXPECT_FALSE(reader.has("none"));
  const Tensor w = reader.Read("w");
  EXPECT_EQ(w.shape(), (Shape{2, 2}));
  EXPECT_EQ(w.ToVector<float>(), (std::vector<float>{1, -2, 3.5f, 0}));
  EXPECT_EQ(reader.Read("ids").ToVector<int64_t>(), (std::vector<int64_t>{5, -6}));
  EXPECT_EQ(MessageOf([&] { reader.Read("none"); }), file_ + ": has no tensor \"none\"");
}

TEST_F(SafetensorsTest, WriterRefusesWhatTheFormatCannotHold) {
  const Tensor x = Tensor::FromVector<float>({1});
  WriteSafetensors(file_, {{"x", x}});
  const std::string before = ReadFile(file_);
  EXPECT_THROW(WriteSafetensors(file_, {{"x", x}, {"x", x}}), Error);
  EXPECT_THROW(WriteSafetensors(file_, {{"__metadata__", x}}), Error);
  EXPECT_THROW(WriteSafetensors(file_, {{"x", Tensor::Unallocated({1})}}), Error);
  EXPECT_THROW(WriteSafetensors(file_, {{"\xff", x}}), Error);
  EXPECT_EQ(ReadFile(file_), before);
}

// Conversion works at odd addresses, which tensors get behind headers without padding.
TEST_F(SafetensorsTest, ConvertsFloatsAtAnyAlignment) {
  for (const std::string pad : {"", " ", "   "}) {
    const double f64[] = {0.1, -1e300};
    const float f32[] = {2.5f, std::numeric_limits<float>::infinity()};
    std::string buffer(reinterpret_cast<const char*>(f64), 16);
    buffer.append(reinterpret_cast<const char*>(f32), 8);
    buffer += std::string("\x00\x3c\x01\x00", 4);  // F16: 1, the smallest denormal
    buffer += std::string("\x80\x3f\x49\xc0", 4);  // BF16: 1, -3.140625
    WriteRaw(R"({"d":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},)"
             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
             R"("h":{"dtype":"F16","shape":[2],"data_offsets":[24,28]},)"
             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[28,32]}})" +
                 pad,
             buffer);
    SafetensorsReader reader(file_);
    const auto read = [&](const char* name) {
      Tensor out = Tensor::Empty({2});
      reader.Read(name, out);
      return out.ToVector<float>();
    };
    EXPECT_EQ(read("d"), (std::vector<float>{0.1f, -std::numeric_limits<float>::infinity()}));
    EXPECT_EQ(read("f"), (std::vector<float>{2.5f, std::numeric_limits<float>::infinity()}));
    EXPECT_EQ(read("h"), (std::vector<float>{1, 0x1p-24f}));
    EXPECT_EQ(read("b"), (std::vector<float>{1, -3.140625f}));
    EXPECT_EQ(reader.Read("h").dtype(), DType::kF16);
    EXPECT_EQ(reader.Read("d").ToVector<double>()[1], -1e300);
  }
}

TEST_F(SafetensorsTest, IntegersConvertOnlyWhereTheyFit) {
  WriteRaw(R"({"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
           R"("u":{"dtype":"U16","shape":[1],"data_offsets":[16,18]},)"
           R"("f":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[18,19]}})",
           Bytes(3, Bytes(uint64_t{1} << 40, std::string("\xff\xff\x00", 3))));
  SafetensorsReader reader(file_);
  Tensor i32 = Tensor::Empty({2}, DType::kI32);
  EXPECT_HAS(MessageOf([&] { reader.Read("i", i32); }), "tensor \"i\" has values that int32 can't");
  Tensor i64 = Tensor::Empty({1}, DType::kI64);
  reader.Read("u", i64);
  EXPECT_EQ(i64.Item(), 65535);
  Tensor f32 = Tensor::Empty({2});
  EXPECT_HAS(MessageOf([&] { reader.Read("i", f32); }), "has dtype I64, which can't be read as");
  EXPECT_HAS(MessageOf([&] { reader.Read("f"); }), "has dtype F8_E4M3, which Lathe does not have");
  EXPECT_HAS(MessageOf([&] { reader.Read("u", f32); }), "has shape [1] but [2] is wanted");
}

TEST_F(SafetensorsTest, EmptyFilesAndTensors) {
  WriteRaw("{}", "");
  EXPECT_TRUE(SafetensorsReader(file_).entries().empty());
  WriteRaw(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
           R"("b":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
           R"("c":{"dtype":"F32","shape":[2,0],"data_offsets":[1,1]}}  )",
           "x");
  SafetensorsReader reader(file_);
  EXPECT_EQ(reader.Read("a").numel(), 0);
  EXPECT_EQ(reader.Read("c").shape(), (Shape{2, 0}));
  EXPECT_EQ(reader.Read("b").Item(), 'x');
}

TEST_F(SafetensorsTest, RejectsBrokenFrames) {
  WriteFileAtomically(file_, "");
  EXPECT_HAS(OpenError(), "too short for a safetensors file (0 bytes)");
  WriteFileAtomically(file_, "1234567");
  EXPECT_HAS(OpenError(), "too short");
  WriteFileAtomically(file_, Bytes(100'000'001, "{}"));
  EXPECT_HAS(OpenError(), "claims 100000001 bytes");
  WriteFileAtomically(file_, Bytes(~uint64_t{0}, "{}"));
  EXPECT_HAS(OpenError(), "claims 18446744073709551615 bytes");
  WriteFileAtomically(file_, Bytes(50, "{}"));
  EXPECT_HAS(OpenError(), "its header has 50 bytes but the file has 10");
  WriteFileAtomically(file_, Bytes(0, ""));
  EXPECT_HAS(OpenError(), "must start with {");
  EXPECT_HAS(HeaderError(" {}"), "must start with {");
  EXPECT_HAS(HeaderError("{"), "not JSON");
  EXPECT_HAS(HeaderError("{}x"), "not JSON");
  EXPECT_HAS(HeaderError("{\"\xff\":1}"), "not JSON");
  EXPECT_EQ(MessageOf([&] { SafetensorsReader reader((dir_ / "none").string()); }),
            (dir_ / "none").string() + ": No such file or directory");
  EXPECT_HAS(MessageOf([&] { SafetensorsReader reader(dir_.string()); }), "Is a directory");
}

TEST_F(SafetensorsTest, RejectsBrokenHeaders) {
  const std::string good = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_HAS(HeaderError(R"({"a":)" + good + R"(,"a":)" + good + "}", "x"), "has \"a\" twice");
  EXPECT_HAS(
      HeaderError(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x"),
      "has \"dtype\" twice");
  EXPECT_HAS(HeaderError(R"({"__metadata__":1})"), "\"__metadata__\" must be an object");
  EXPECT_HAS(HeaderError(R"({"__metadata__":{"k":1}})"), "the value of \"k\" must be a string");
  EXPECT_HAS(HeaderError(R"({"__metadata__":{"format":"tf"}})"), "weights of a tf model");
  const auto entry_error = [&](const std::string& entry) {
    return HeaderError(R"({"w":)" + entry + "}", "xxxx");
  };
  EXPECT_HAS(entry_error("1"), "tensor \"w\": its description must be an object");
  EXPECT_HAS(entry_error(R"({"shape":[1],"data_offsets":[0,1]})"), "tensor \"w\": \"dtype\"");
  EXPECT_HAS(entry_error(R"({"dtype":"F99","shape":[1],"data_offsets":[0,1]})"),
             "tensor \"w\": unknown dtype \"F99\"");
  EXPECT_HAS(entry_error(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"),
             "tensor \"w\": shape must be whole numbers but has -1");
  EXPECT_HAS(entry_error(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})"), "but has 1.5");
  EXPECT_HAS(entry_error(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]})"),
             "shape must be whole numbers");
  EXPECT_HAS(entry_error(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})"),
             "is too large");
  EXPECT_HAS(entry_error(R"({"dtype":"F4","shape":[1],"data_offsets":[0,1]})"), "whole bytes");
  EXPECT_HAS(entry_error(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"),
             "must have 2 numbers");
  EXPECT_HAS(entry_error(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"),
             "ends at 0, before its start at 4");
  EXPECT_HAS(entry_error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
             "F32 of shape [2] needs 8 bytes but has 4");
}

// The message for a wrong shape shows it. Without a limit its depth would fill the stack.
TEST_F(SafetensorsTest, RejectsDeepHeaders) {
  constexpr int kLevels = 1'000'000;
  WriteRaw(R"({"a":{"dtype":"F32","shape":)" + std::string(kLevels, '[') +
               std::string(kLevels, ']') + R"(,"data_offsets":[0,0]}})",
           "");
  EXPECT_EQ(MessageOf([&] { SafetensorsReader reader(file_); }),
            file_ + ": the JSON is nested more than 200 levels deep");
}

TEST_F(SafetensorsTest, RejectsHolesOverlapsAndWrongLengths) {
  const auto header = [](int a0, int a1, int b0, int b1) {
    const auto entry = [](int begin, int end) {
      return R"({"dtype":"U8","shape":[)" + std::to_string(end - begin) + R"(],"data_offsets":[)" +
             std::to_string(begin) + "," + std::to_string(end) + "]}";
    };
    return R"({"a":)" + entry(a0, a1) + R"(,"b":)" + entry(b0, b1) + "}";
  };
  EXPECT_EQ(HeaderError(header(0, 2, 2, 4), "1234"), "nothing was thrown");
  EXPECT_EQ(HeaderError(header(2, 4, 0, 2), "1234"), "nothing was thrown");
  EXPECT_EQ(HeaderError(header(0, 3, 2, 4), "1234"), "tensor \"b\": overlaps tensor \"a\"");
  EXPECT_EQ(HeaderError(header(0, 2, 3, 4), "1234"),
            "tensor \"b\": there is a hole of 1 bytes between tensor \"a\" and it");
  EXPECT_EQ(HeaderError(header(1, 2, 2, 4), "1234"),
            "tensor \"a\": there is a hole of 1 bytes between the start and it");
  EXPECT_EQ(HeaderError(header(0, 2, 2, 4), "123"),
            "tensor \"b\": ends at byte 4 but the file has only 3 bytes of tensors");
  EXPECT_EQ(HeaderError(header(0, 9, 2, 4), "1234"),
            "tensor \"a\": ends at byte 9 but the file has only 4 bytes of tensors");
  EXPECT_EQ(HeaderError(header(0, 2, 2, 4), "12345"), "1 bytes follow the last tensor");
}

TEST_F(SafetensorsTest, EveryTruncationIsNoticed) {
  WriteSafetensors(file_, {{"w", Tensor::FromVector<float>({1, 2, 3})}});
  const std::string whole = ReadFile(file_);
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteFileAtomically(file_, std::string_view(whole).substr(0, size));
    EXPECT_NE(OpenError(), "nothing was thrown") << size;
  }
}

class ShardTest : public SafetensorsTest {
 protected:
  void Shard(const std::string& name, std::vector<std::pair<std::string, Tensor>> tensors) {
    WriteSafetensors((dir_ / name).string(), tensors);
  }
  void Index(const std::string& weight_map) {
    WriteFileAtomically((dir_ / "model.safetensors.index.json").string(),
                        R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}");
  }
  std::string DirectoryError() {
    return MessageOf([&] { SafetensorsReader::FromDirectory(dir_.string()); });
  }
};

TEST_F(ShardTest, ReadsAcrossShards) {
  Shard("model-00001-of-00002.safetensors", {{"a", Tensor::FromVector<float>({1})}});
  Shard("model-00002-of-00002.safetensors", {{"b", Tensor::FromVector<float>({2})}});
  Index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  const SafetensorsReader reader = SafetensorsReader::FromDirectory(dir_.string());
  EXPECT_EQ(reader.Read("a").Item(), 1);
  EXPECT_EQ(reader.Read("b").Item(), 2);
  // If there are both, the single file is read, not the shards. Transformers does the same.
  WriteSafetensors(file_, {{"c", Tensor::FromVector<float>({3})}});
  EXPECT_EQ(SafetensorsReader::FromDirectory(dir_.string()).entries().size(), 1u);
}

TEST_F(ShardTest, RejectsBrokenIndexes) {
  EXPECT_HAS(DirectoryError(), "has neither model.safetensors nor model.safetensors.index.json");
  Shard("s1.safetensors", {{"a", Tensor::FromVector<float>({1})}});
  Index(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  EXPECT_HAS(DirectoryError(), "s2.safetensors: the file is missing, though ");
  Index(R"({"a":"s1.safetensors","b":"s1.safetensors"})");
  EXPECT_HAS(DirectoryError(), "s1.safetensors: tensor \"b\": the file lacks it, though ");
  for (const char* shard :
       {"../s1.safetensors", "/s1.safetensors", "x\\\\s1.safetensors", "s1.bin"}) {
    Index(R"({"a":")" + std::string(shard) + "\"}");
    EXPECT_HAS(DirectoryError(), "must be the name of a .safetensors file beside it");
  }
  Index(R"({"a":1})");
  EXPECT_HAS(DirectoryError(), "the value of \"a\" must be a file name");
  Index("[]");
  EXPECT_HAS(DirectoryError(), "\"weight_map\" must be an object");
  Index("{");
  EXPECT_HAS(DirectoryError(), "is not JSON");
}

}  // namespace
}  // namespace lathe
