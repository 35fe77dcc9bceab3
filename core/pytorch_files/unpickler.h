// Reads Python's pickles as far as PyTorch's files of weights need it. It is a small stack machine
// that runs nothing: of Python's functions it knows those that state dicts use, and refuses all
// others by name.
//
//   Unpickler unpickler(bytes, file);
//   const PickledValue& value = unpickler.Load();
//   for (const auto& [name, tensor] : unpickler.TensorsOf(value)) ...
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/tensor.h"

namespace lathe {

// A storage that tensors refer to: an array in another part of the file.
struct PickledStorage {
  std::string dtype;  // as safetensors names it
  std::string key;
  int64_t size = 0;    // in elements
  int64_t offset = 0;  // of its first element in the storage that the key names
};

struct PickledTensor {
  PickledStorage storage;
  int64_t offset = 0;  // of the first element in the storage, in elements
  Shape shape;
  std::vector<int64_t> strides;  // in elements
};

struct PickledValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kTuple,
    kList,
    kDict,  // `items` are keys and values in turn
    kFunction,
    kStorage,
    kTensor,
  };
  Kind kind = Kind::kNone;
  int depth = 1;          // of containers in each other
  int64_t integer = 0;    // of kInteger and kBool; for kFunction the function's number
  std::string_view text;  // of a string, or of an integer that int64_t can't hold
  std::vector<const PickledValue*> items = {};
  PickledTensor tensor = {};  // of kTensor; kStorage uses its `storage`
};

class Unpickler {
 public:
  // `bytes` may hold several pickles, and other things after them. They must outlive the values.
  Unpickler(std::string_view bytes, std::string file);

  // Reads the next pickle. The value lives as long as the Unpickler. Throws BrokenWeights for a
  // damaged pickle. Throws InvalidArgument for a function that isn't known, and for values of kinds
  // that files of weights don't have, such as sets and bytes. Does so, too, for a pickle with more
  // values, or with deeper nesting, than files of weights have.
  const PickledValue& Load();
  // Returns the number of bytes of the pickles that were read.
  size_t position() const { return at_; }

  // Returns the tensors of a state dict by name, in the dict's order. Other values in it don't
  // count. A training checkpoint holds its state dict as "state_dict" or "model_state_dict" beside
  // other things: then returns that one's tensors, with names such as "state_dict.dense.bias".
  // Throws InvalidArgument if `value` is no dict, or if there is not one state dict with tensors.
  std::vector<std::pair<std::string, const PickledTensor*>> TensorsOf(
      const PickledValue& value) const;
  // Returns all storages that the values refer to.
  const std::vector<const PickledStorage*>& storages() const { return storages_; }

 private:
  using Value = PickledValue;
  using Kind = PickledValue::Kind;

  void Step(unsigned char op);
  bool PushSimple(unsigned char op);
  bool PushText(unsigned char op);
  bool PushContainer(unsigned char op);
  bool ChangeContainer(unsigned char op);
  bool UseMemo(unsigned char op);
  bool Call(unsigned char op);

  Error Broken(const std::string& what) const;
  Error Refused(const std::string& what) const;
  Error TooDeep() const;
  Error TooManyValues() const;
  std::string_view Take(size_t size);
  template <typename T>
  T TakeNumber();
  std::string_view TakeLine();
  Value& Make(Kind kind);
  void Push(const Value& value);
  const Value& Pop();
  void PushInteger(int64_t integer, Kind kind = Kind::kInteger);
  void PushTuple(size_t begin);
  void PushFunction(std::string_view module, std::string_view name);
  size_t PopMark();
  Value& Container(size_t index, Kind kind);
  void Append(Value& container, const Value& value);
  void AppendFrom(size_t begin, Value& container, Kind kind);
  void Remember(uint64_t key);
  const Value& Reduce(const Value& function, const Value& arguments);
  void CheckBits(const Value& bits) const;
  const Value& RebuildTensor(const Value& arguments);
  const Value& MakeDict(const Value& arguments);
  const Value& LoadStorage(const Value& id);
  int64_t Count(const Value& value, const char* what) const;

  std::string_view bytes_;
  std::string file_;
  size_t at_ = 0;
  bool stopped_ = false;
  std::deque<Value> values_;  // all that were made; their addresses never change
  std::vector<const Value*> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::map<uint64_t, const Value*> memo_;
  std::vector<const PickledStorage*> storages_;
  size_t num_items_ = 0;  // of all containers
};

}  // namespace lathe
