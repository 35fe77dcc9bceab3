// StateDict: what an object must keep to go on later exactly where it is: numbers and texts in
// JSON, and tensors. Optimizer, Scheduler, GradScaler and DataLoader have
//
//   StateDict optimizer_state = optimizer.StateDict();
//   optimizer.LoadStateDict(optimizer_state);  // throws if the state doesn't fit
//
// core/checkpoint/state_file.h writes one to a file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/tensor.h"

namespace lathe {

// A tensor of a state, or a consecutive part of it: a rank may hold only its stripes.
struct StateTensor {
  std::string name;
  Tensor values;      // the elements [begin, begin + values.numel()), on the host or a device
  Shape shape;        // of the whole tensor
  int64_t begin = 0;  // in elements
  bool is_whole() const { return values.numel() == NumElements(shape); }
};

struct StateDict {
  nlohmann::json values = nlohmann::json::object();
  std::vector<StateTensor> tensors;

  // Returns the value of `key`. Throws DataLoss if there is none, or if it has another type, such
  // as a number that doesn't fit. The error names `owner`, the object that wants the value.
  template <typename T>
  T Get(const char* owner, const std::string& key) const {
    const auto found = values.find(key);
    if (found == values.end()) {
      throw DataLoss(std::string("[") + owner + "] the state has no \"" + key + "\"");
    }
    const auto wrong = [&] {
      return DataLoss(std::string("[") + owner + "] \"" + key + "\" of the state has a wrong type");
    };
    if constexpr (std::is_same_v<T, int64_t>) {
      const std::optional<int64_t> number = WholeNumber(*found);
      if (!number) throw wrong();
      return *number;
    } else {
      static_assert(!std::is_integral_v<T> || std::is_same_v<T, bool>, "ask for an int64_t");
      try {
        return found->template get<T>();
      } catch (const nlohmann::json::exception&) {
        throw wrong();
      }
    }
  }

  void Add(std::string name, const Tensor& whole) {
    tensors.push_back({std::move(name), whole, whole.shape()});
  }
};

// Makes `to` a copy of `from` on the host. Memory that `to` holds already is used again.
void CopyState(const StateDict& from, StateDict& to);

}  // namespace lathe
