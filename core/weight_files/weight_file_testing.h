// What tests of readers of weights share: a file that gets bytes, and what its reader makes of
// them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lathe/core/weight_files/stored_array.h"

namespace lathe {

class WeightFileTest : public testing::Test {
 protected:
  using Reader = StoredArrays (*)(const std::string& file);

  WeightFileTest(const char* name, Reader read) : name_(name), read_(read) {}

  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(testing::TempDir()) /
           (std::string(info->test_suite_name()) + "_" + info->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    file_ = dir_ / name_;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  StoredArrays Read(const std::string& bytes) {
    std::filesystem::remove(file_);  // one that is cut and filled again may be flushed to the disk
    std::ofstream(file_, std::ios::binary) << bytes;
    return read_(file_);
  }
  // Returns the message for these bytes, without the file's name; empty if they are read.
  std::string Refusal(const std::string& bytes) {
    try {
      Read(bytes);
    } catch (const Error& error) {
      EXPECT_TRUE(error.message().starts_with(file_ + ": ")) << error.message();
      EXPECT_EQ(error.message().find('\n'), std::string::npos) << error.message();
      EXPECT_NE(error.hint(), "") << error.message();
      return error.message().substr(file_.size() + 2);
    }
    return "";
  }
  static std::vector<float> ValuesOf(const StoredArrays& arrays, const std::string& name) {
    Tensor tensor = Tensor::Empty(arrays.at(name).shape);
    ReadStoredArray(name, arrays.at(name), tensor);
    return tensor.ToVector<float>();
  }

  std::filesystem::path dir_;
  std::string file_;

 private:
  const char* name_;
  Reader read_;
};

}  // namespace lathe
