#include "lathe/core/pytorch_files/pytorch_file.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include "lathe/core/pytorch_files/crc32.h"
#include "lathe/core/pytorch_files/torch_save_testing.h"
#include "lathe/core/weight_files/weight_file_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using torch_save::Bytes;
using torch_save::Dict;
using torch_save::Function;
using torch_save::Integer;
using torch_save::Members;
using torch_save::OldForm;
using torch_save::Parameter;
using torch_save::Pickle;
using torch_save::Storage;
using torch_save::TensorOf;
using torch_save::Text;
using torch_save::Tuple;
using torch_save::Zip;
using torch_save::ZipForm;
using Values = std::vector<float>;

class PyTorchFileTest : public WeightFileTest {
 protected:
  PyTorchFileTest() : WeightFileTest("pytorch_model.bin", ReadPyTorchFile) {}
};

const std::string kFloats = Bytes<float>({1, 2, 3, 4, 5, 6});
const std::string kWeight = TensorOf(Storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1});
const std::string kSome = Pickle(Dict({{"weight", kWeight}}));

TEST(Crc32Test, IsThatOfZipFiles) {
  EXPECT_EQ(Crc32("123456789"), 0xcbf43926u);
  const auto bit_by_bit = [](std::string_view bytes) {
    uint32_t crc = 0xffffffff;
    for (const char byte : bytes) {
      crc ^= static_cast<unsigned char>(byte);
      for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
  };
  std::string bytes;
  for (int i = 0; i < 400; ++i) {
    EXPECT_EQ(Crc32(bytes), bit_by_bit(bytes)) << i;
    EXPECT_EQ(Crc32(std::string_view(bytes).substr(i / 7)),
              bit_by_bit(std::string_view(bytes).substr(i / 7)));
    bytes += static_cast<char>(i * 37 + i / 5);
  }
}

// One storage holds a matrix, its transposed form, a column and a row.
std::string SharedStorage() {
  const std::string storage = Storage("FloatStorage", "0", 6);
  return Pickle(Dict({{"matrix", TensorOf(storage, 0, {2, 3}, {3, 1})},
                      {"transposed", Parameter(TensorOf(storage, 0, {3, 2}, {1, 3}))},
                      {"column", TensorOf(storage, 1, {2}, {3})},
                      {"row", TensorOf(storage, 3, {1, 3}, {77, 1})},
                      {"same", TensorOf(storage, 5, {2, 2}, {0, 0})},
                      {"scalar", TensorOf(storage, 4, {}, {})},
                      {"empty", TensorOf(storage, 6, {0, 3}, {3, 1})},
                      {"number", Integer(7)}}));
}

TEST_F(PyTorchFileTest, TensorsHaveAnyStridesAndShareStorages) {
  const Members storages = {{"0", kFloats}};
  for (const std::string& bytes :
       {ZipForm(SharedStorage(), storages), OldForm(SharedStorage(), storages, {6})}) {
    const StoredArrays arrays = Read(bytes);
    EXPECT_EQ(arrays.size(), 7u);
    EXPECT_EQ(ValuesOf(arrays, "matrix"), (Values{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(ValuesOf(arrays, "transposed"), (Values{1, 4, 2, 5, 3, 6}));
    EXPECT_EQ(ValuesOf(arrays, "column"), (Values{2, 5}));
    EXPECT_EQ(ValuesOf(arrays, "row"), (Values{4, 5, 6}));
    EXPECT_EQ(ValuesOf(arrays, "same"), (Values{6, 6, 6, 6}));
    EXPECT_EQ(ValuesOf(arrays, "scalar"), (Values{5}));
    EXPECT_EQ(ValuesOf(arrays, "empty"), (Values{}));
  }
}

TEST_F(PyTorchFileTest, DTypesOfStorages) {
  const auto tensor = [](const char* type, const char* key) {
    return TensorOf(Storage(type, key, 2), 0, {2}, {1});
  };
  const std::string pickle = Pickle(Dict({{"f16", tensor("HalfStorage", "a")},
                                          {"bf16", tensor("BFloat16Storage", "b")},
                                          {"f64", tensor("DoubleStorage", "c")},
                                          {"i64", tensor("LongStorage", "d")},
                                          {"bool", tensor("BoolStorage", "e")}}));
  const Members storages = {{"a", Bytes<uint16_t>({0x3e00, 0xc000})},
                            {"b", Bytes<uint16_t>({0x3fc0, 0xc000})},
                            {"c", Bytes<double>({1.5, -2})},
                            {"d", Bytes<int64_t>({3, -4})},
                            {"e", std::string("\0\1", 2)}};
  for (const std::string& bytes :
       {ZipForm(pickle, storages), OldForm(pickle, storages, {2, 2, 2, 2, 2})}) {
    const StoredArrays arrays = Read(bytes);
    for (const char* name : {"f16", "bf16", "f64"}) {
      EXPECT_EQ(ValuesOf(arrays, name), (Values{1.5, -2})) << name;
    }
    Tensor integers = Tensor::Empty({2}, DType::kI64);
    ReadStoredArray("i64", arrays.at("i64"), integers);
    EXPECT_EQ(integers.ToVector<int64_t>(), (std::vector<int64_t>{3, -4}));
    ReadStoredArray("bool", arrays.at("bool"), integers);
    EXPECT_EQ(integers.ToVector<int64_t>(), (std::vector<int64_t>{0, 1}));
    EXPECT_THROW(ValuesOf(arrays, "i64"), Error);
  }
}

// Python 2 gave pairs to OrderedDict, and wrote texts in another way. The oldest tensors have no
// hooks, and their storages may be views of others.
TEST_F(PyTorchFileTest, OldWaysOfPickling) {
  const std::string name("U\x06weight", 8);
  const std::string view = Tuple({Text("1"), Integer(2), Integer(4)});
  const std::string tensor = Function("torch._utils", "_rebuild_tensor") +
                             Tuple({Storage("FloatStorage", "0", 6, view), Integer(1),
                                    Tuple({Integer(2)}), Tuple({Integer(1)})}) +
                             "R";
  const std::string pickle = Pickle(Function("collections", "OrderedDict") + "]](" + name + tensor +
                                    "ea" + "\x85R" + "}(" + Text("_metadata") + "}ub");
  EXPECT_EQ(ValuesOf(Read(OldForm(pickle, {{"0", kFloats}}, {6})), "weight"), (Values{4, 5}));
}

// Such as a loop saves beside its optimizer's state.
TEST_F(PyTorchFileTest, TrainingCheckpointsHaveAStateDictInside) {
  const Members storages = {{"0", kFloats}};
  const std::string inner = Dict({{"weight", kWeight}}), none = Dict({});
  for (const std::string key : {"state_dict", "model_state_dict"}) {
    const std::string pickle =
        Pickle(Dict({{"epoch", Integer(3)}, {"loss", kWeight}, {key, inner}, {"callbacks", none}}));
    for (const std::string& bytes : {ZipForm(pickle, storages), OldForm(pickle, storages, {6})}) {
      const StoredArrays arrays = Read(bytes);
      EXPECT_EQ(arrays.size(), 1u);
      EXPECT_EQ(ValuesOf(arrays, key + ".weight"), (Values{1, 2, 3, 4, 5, 6}));
    }
  }
  const auto refusal = [&](const std::vector<std::pair<std::string, std::string>>& items) {
    return Refusal(ZipForm(Pickle(Dict(items)), storages));
  };
  EXPECT_EQ(refusal({{"state_dict", inner}, {"model_state_dict", inner}}), "holds two state dicts");
  EXPECT_EQ(refusal({{"epoch", Integer(3)}, {"net\x1b", inner}}),
            "holds a dict without tensors; its keys are \"epoch\", \"net?\"");
  EXPECT_EQ(refusal({{"state_dict", Dict({{"model", inner}})}}),
            "holds a dict without tensors; its keys are \"model\"");
  EXPECT_EQ(
      refusal({{"state_dict", inner}, {"hparams", Function("argparse", "Namespace")}}),
      "needs \"argparse.Namespace\", which no plain file of weights needs; Lathe runs no code "
      "of a file");
  // A model may have a tensor of that name.
  EXPECT_EQ(Read(ZipForm(Pickle(Dict({{"state_dict", kWeight}})), storages)).count("state_dict"),
            1u);
}

// A view of a conjugated tensor's imaginary part has its storage's values with the other sign.
TEST_F(PyTorchFileTest, RefusesBitsThatChangeValues) {
  const auto with_bits = [&](const std::string& bits) {
    const std::string tensor = TensorOf(Storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1}, bits);
    return ZipForm(Pickle(Dict({{"weight", tensor}})), {{"0", kFloats}});
  };
  for (const char* none : {"N", "}"}) {
    EXPECT_EQ(ValuesOf(Read(with_bits(none)), "weight"), (Values{1, 2, 3, 4, 5, 6})) << none;
  }
  EXPECT_EQ(Refusal(with_bits("}(" + Text("neg") + "\x88u")),
            "has a tensor that isn't stored as it is; torch.save noted \"neg\" with it");
  EXPECT_EQ(Refusal(with_bits("}(" + Text("conj") + "\x88" + Text("neg") + "\x88u")),
            "has a tensor that isn't stored as it is; torch.save noted \"conj\", \"neg\" with it");
  EXPECT_EQ(Refusal(with_bits("K\x01")), "its pickle has a tensor whose bits are no dict");
}

TEST_F(PyTorchFileTest, RefusesTensorsOutsideOfTheirStorage) {
  const auto refusal = [&](int64_t size, const torch_save::Sizes& shape,
                           const torch_save::Sizes& strides, int64_t offset = 0) {
    const std::string storage = Storage("FloatStorage", "0", size);
    const std::string pickle =
        Pickle(Dict({{"weight", TensorOf(storage, offset, shape, strides)}}));
    const std::string old = Refusal(OldForm(pickle, {{"0", kFloats}}, {6}));
    const std::string zip = Refusal(ZipForm(pickle, {{"0", kFloats}}));
    EXPECT_EQ(old.empty(), zip.empty());
    return zip;
  };
  EXPECT_EQ(refusal(6, {2, 3}, {3, 1}), "");
  EXPECT_EQ(refusal(6, {2, 3}, {3, 1}, 1),
            "its pickle has a tensor of shape [2, 3] that is not inside its storage of 6 elements");
  EXPECT_NE(refusal(6, {2, 3}, {4, 1}), "");
  EXPECT_NE(refusal(6, {-1, 3}, {3, 1}), "");
  EXPECT_NE(refusal(6, {2, 3}, {3, -1}), "");
  EXPECT_NE(refusal(6, {2, 3}, {3, 1}, -1), "");
  const int64_t large = 0x7fffffff;
  EXPECT_NE(refusal(6, {large, large, large}, {0, 0, 0}), "");
  EXPECT_NE(refusal(6, {large, large, large}, {large, large, large}), "");
  EXPECT_EQ(refusal(8, {8}, {1}), "tensor \"weight\": its storage of 8 elements has 24 bytes");
}

TEST_F(PyTorchFileTest, RefusesDamagedZipFiles) {
  const std::string good = ZipForm(kSome, {{"0", kFloats}});
  EXPECT_EQ(Refusal(good), "");
  EXPECT_EQ(Refusal(ZipForm(kSome, {{"1", kFloats}})),
            "tensor \"weight\": the file lacks \"model/data/0\"");
  EXPECT_EQ(Refusal(ZipForm(kSome, {{"0", kFloats}, {"0", kFloats}})),
            "holds \"model/data/0\" twice");
  EXPECT_EQ(Refusal(Zip({{"a\n\x1b", "x"}, {"a\n\x1b", "x"}})), "holds \"a??\" twice");
  EXPECT_EQ(Refusal(Zip({{"word/document.xml", "x"}})),
            "is a zip file but was not written by torch.save");
  EXPECT_EQ(Refusal(Zip({{"model/data.pkl", kSome}, {"model/byteorder", "big"}})),
            "was written by a big-endian machine");
  const size_t directory = good.find("PK\x01\x02");
  const auto changed = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return Refusal(bytes);
  };
  EXPECT_EQ(changed(directory + 10, 8), "its member \"model/data.pkl\" is compressed");
  EXPECT_EQ(changed(directory + 8, 1), "its member \"model/data.pkl\" is encrypted");
  EXPECT_EQ(changed(8, 8), "its member \"model/data.pkl\" is compressed");
  EXPECT_EQ(changed(good.find(kFloats), 1),
            "\"model/data/0\" in it has another CRC-32 than the file says");
  // What no tensor of the state dict uses, such as an optimizer's storages, is not even read.
  std::string more = ZipForm(kSome, {{"0", kFloats}, {"1", "moments"}});
  more[more.find("moments")] = 'M';
  EXPECT_EQ(Refusal(more), "");
  // The second member begins within the first.
  const std::string inner = Zip({{"b", "x"}});
  std::string outer = Zip({{"a", inner}, {"b", "x"}});
  const size_t second = outer.rfind("PK\x01\x02");
  outer[second + 42] = static_cast<char>(outer.find("PK\x03\x04", 1));
  EXPECT_EQ(Refusal(outer), "its members \"a\" and \"b\" overlap");
}

// torch.save takes any protocol. tests/weight_formats_test.cc reads its files with 3 to 5.
TEST_F(PyTorchFileTest, OldFormHasAnyBinaryProtocol) {
  const std::string old = OldForm(kSome, {{"0", kFloats}}, {6});
  for (const char protocol : {2, 3, 4, 5}) {
    std::string bytes = old;
    bytes[1] = protocol;
    EXPECT_EQ(ValuesOf(Read(bytes), "weight"), (Values{1, 2, 3, 4, 5, 6})) << int{protocol};
    bytes.insert(2, std::string("\x95\x0d\0\0\0\0\0\0\0", 9));
    EXPECT_EQ(ValuesOf(Read(bytes), "weight"), (Values{1, 2, 3, 4, 5, 6})) << int{protocol};
  }
  EXPECT_EQ(Refusal("L119547037146038801333356L\n.M\xe9\x03."),
            "was saved with pickle's protocol 0 or 1, and Lathe reads 2 to 5");
  for (const char protocol : {0, 1, 6}) {
    std::string bytes = old;
    bytes[1] = protocol;
    EXPECT_EQ(Refusal(bytes), "was not written by torch.save, or is damaged");
  }
  EXPECT_EQ(Refusal(std::string("\x80\x04\x95", 3)),
            "was not written by torch.save, or is damaged");
}

TEST_F(PyTorchFileTest, RefusesOtherFiles) {
  EXPECT_EQ(Refusal(""), "was not written by torch.save, or is damaged");
  EXPECT_EQ(Refusal("<html>"), "was not written by torch.save, or is damaged");
  EXPECT_EQ(Refusal(OldForm(kSome, {{"0", kFloats}}, {6}) + "x"),
            "1 bytes follow the last storage");
  EXPECT_EQ(Refusal(OldForm(kSome, {{"0", kFloats}}, {60})),
            "is cut off: a storage has 60 elements but 24 bytes are left");
  EXPECT_EQ(Refusal(OldForm(kSome, {}, {})), "tensor \"weight\": its storage is missing");
  EXPECT_EQ(Refusal(OldForm(kSome, {{"1", kFloats}}, {6})), "lists a storage that no tensor uses");
  EXPECT_THROW(ReadPyTorchFile(dir_), Error);
  EXPECT_THROW(ReadPyTorchFile(dir_ / "none.bin"), Error);
}

TEST_F(PyTorchFileTest, ShardsByTheirIndex) {
  const std::string index = dir_ / "pytorch_model.bin.index.json";
  const auto refusal = [&](const std::string& map) -> std::string {
    std::ofstream(index) << R"({"weight_map":)" + map + "}";
    try {
      EXPECT_EQ(ValuesOf(ReadPyTorchShards(index), "weight"), (Values{1, 2, 3, 4, 5, 6}));
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  std::ofstream(dir_ / "a.bin", std::ios::binary) << ZipForm(kSome, {{"0", kFloats}});
  std::ofstream(dir_ / "b.bin", std::ios::binary) << OldForm(kSome, {{"0", kFloats}}, {6});
  EXPECT_EQ(refusal(R"({"weight":"a.bin"})"), "");
  EXPECT_EQ(refusal(R"({"weight":"b.bin"})"), "");
  EXPECT_NE(refusal(R"({"weight":"c.bin"})").find("c.bin: the file is missing"), std::string::npos);
  EXPECT_NE(refusal(R"({"other":"a.bin"})").find("tensor \"other\": the file lacks it"),
            std::string::npos);
  std::ofstream(dir_ / "d.bin") << "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
  EXPECT_EQ(refusal(R"({"weight":"d.bin"})"),
            (dir_ / "d.bin").string() + ": is only a pointer of Git LFS to the weights");
  fs::create_directory(dir_ / "folder");
  fs::rename(dir_ / "a.bin", dir_ / "folder/a.bin");
  EXPECT_EQ(refusal(R"({"weight":"folder/a.bin"})"), "");
  for (const char* name :
       {"../a.bin", "/a.bin", "a.safetensors", "folder/../b.bin", "folder//a.bin"}) {
    EXPECT_NE(refusal(R"({"weight":")" + std::string(name) + "\"}")
                  .find("must be the name of a .bin file beside it"),
              std::string::npos);
  }
}

// Checksums find every change of a tensor. What else changes is refused or doesn't matter.
TEST_F(PyTorchFileTest, NoByteChangesATensorUnnoticed) {
  const std::string zip = ZipForm(kSome, {{"0", kFloats}});
  for (size_t at = 0; at < zip.size(); ++at) {
    EXPECT_NE(Refusal(zip.substr(0, at)), "") << "cut after " << at;
    for (const char flip : {1, 0x10, 0x7f}) {
      std::string changed = zip;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      std::optional<StoredArrays> arrays;
      try {
        arrays = Read(changed);
      } catch (const Error&) {
        continue;
      }
      EXPECT_EQ(arrays->size(), 1u) << at;
      EXPECT_EQ(ValuesOf(*arrays, "weight"), (Values{1, 2, 3, 4, 5, 6})) << at;
    }
  }
  const std::string old = OldForm(kSome, {{"0", kFloats}}, {6});
  for (size_t at = 0; at < old.size(); ++at) {
    EXPECT_NE(Refusal(old.substr(0, at)), "") << "cut after " << at;
  }
}

}  // namespace
}  // namespace lathe
