// Writes files as torch.save does, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lathe::torch_save {

using Sizes = std::vector<int64_t>;

// Parts of a pickle.
std::string Text(const std::string& text);
std::string Integer(int64_t number);  // of 32 bits
std::string Function(const std::string& module, const std::string& name);
std::string Tuple(const std::vector<std::string>& items);
// "FloatStorage" or another type of torch's. `tail` is the rest of its id.
std::string Storage(const std::string& type, const std::string& key, int64_t size,
                    const std::string& tail = "");
// `tail` is a seventh argument, if any.
std::string TensorOf(const std::string& storage, int64_t offset, const Sizes& size,
                     const Sizes& strides, const std::string& tail = "");
std::string Parameter(const std::string& tensor);
std::string Dict(const std::vector<std::pair<std::string, std::string>>& items);
std::string Pickle(const std::string& value);

using Members = std::vector<std::pair<std::string, std::string>>;  // names and bytes

std::string Zip(const Members& members);
// The zip form of a state dict. `storages` are keys and bytes.
std::string ZipForm(const std::string& pickle, const Members& storages);
// The form before PyTorch 1.6. `sizes` are the numbers of elements.
std::string OldForm(const std::string& pickle, const Members& storages, const Sizes& sizes);

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace lathe::torch_save
