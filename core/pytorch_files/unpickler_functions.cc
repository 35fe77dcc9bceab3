// The functions of Python and PyTorch that files of weights use, and what they make.
#include <array>

#include "lathe/core/pytorch_files/unpickler.h"
#include "lathe/core/weight_files/stored_array.h"

namespace lathe {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 48;  // of a dimension, in elements

enum Function : int64_t {
  kOrderedDict,
  kRebuildTensor,     // without a layout, of the oldest files
  kRebuildTensorV2,   // storage, offset, size, strides, requires_grad, hooks, bits
  kRebuildParameter,  // tensor, requires_grad, hooks
  kFirstStorage,      // and on: kStorages
};

struct StorageType {
  const char* name;
  const char* dtype;  // as safetensors names it
};
constexpr std::array<StorageType, 10> kStorages = {{{"FloatStorage", "F32"},
                                                    {"HalfStorage", "F16"},
                                                    {"BFloat16Storage", "BF16"},
                                                    {"DoubleStorage", "F64"},
                                                    {"LongStorage", "I64"},
                                                    {"IntStorage", "I32"},
                                                    {"ShortStorage", "I16"},
                                                    {"CharStorage", "I8"},
                                                    {"ByteStorage", "U8"},
                                                    {"BoolStorage", "BOOL"}}};

// Returns the function's number; -1 for one that isn't known.
int64_t FindFunction(std::string_view module, std::string_view name) {
  if (module == "collections" && name == "OrderedDict") return kOrderedDict;
  if (module == "torch._utils") {
    if (name == "_rebuild_tensor") return kRebuildTensor;
    if (name == "_rebuild_tensor_v2") return kRebuildTensorV2;
    if (name == "_rebuild_parameter") return kRebuildParameter;
  }
  if (module == "torch") {
    for (size_t i = 0; i < kStorages.size(); ++i) {
      if (name == kStorages[i].name) return kFirstStorage + static_cast<int64_t>(i);
    }
  }
  return -1;
}

// The keys under which Lightning's checkpoints, and those of loops that people write, have a
// model's state dict.
constexpr std::array<std::string_view, 2> kStateDictKeys = {"state_dict", "model_state_dict"};

// Returns a name in the file as it may be printed.
std::string Shown(std::string_view name) { return Printable(std::string(name.substr(0, 100))); }

// Returns the dict with this key in a dict, or null.
const PickledValue* FindDict(const PickledValue& dict, std::string_view key) {
  const PickledValue* found = nullptr;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickledValue& name = *dict.items[i];
    if (name.kind == PickledValue::Kind::kString && name.text == key) found = dict.items[i + 1];
  }
  return found != nullptr && found->kind == PickledValue::Kind::kDict ? found : nullptr;
}

// Returns some keys of a dict: "epoch", "model".
std::string KeysOf(const PickledValue& dict) {
  constexpr size_t kMost = 5;
  std::string keys;
  size_t shown = 0;
  for (size_t i = 0; i + 1 < dict.items.size() && shown < kMost; i += 2) {
    if (dict.items[i]->kind != PickledValue::Kind::kString) continue;
    keys += (shown++ > 0 ? ", \"" : "\"") + Shown(dict.items[i]->text) + "\"";
  }
  return keys;
}

}  // namespace

void Unpickler::PushFunction(std::string_view module, std::string_view name) {
  const int64_t number = FindFunction(module, name);
  if (number < 0) {
    throw Refused("needs \"" + Shown(module) + "." + Shown(name) +
                  "\", which no plain file of weights needs; Lathe runs no code of a file");
  }
  PushInteger(number, Kind::kFunction);
}

const PickledValue& Unpickler::Reduce(const Value& function, const Value& arguments) {
  if (function.kind != Kind::kFunction || arguments.kind != Kind::kTuple) {
    throw Broken("calls what is no function");
  }
  switch (function.integer) {
    case kOrderedDict:
      return MakeDict(arguments);
    case kRebuildTensor:
    case kRebuildTensorV2:
      return RebuildTensor(arguments);
    case kRebuildParameter:
      if (arguments.items.empty() || arguments.items[0]->kind != Kind::kTensor) {
        throw Broken("has a parameter without a tensor");
      }
      return *arguments.items[0];
    default:
      throw Broken("calls what is no function");
  }
}

// Makes an OrderedDict. Python 2 gives it a list of pairs.
const PickledValue& Unpickler::MakeDict(const Value& arguments) {
  Value& dict = Make(Kind::kDict);
  if (arguments.items.empty()) return dict;
  for (const Value* const pair : arguments.items[0]->items) {
    if (pair->items.size() != 2) throw Broken("has a dict whose items are no pairs");
    for (const Value* const item : pair->items) Append(dict, *item);
  }
  return dict;
}

int64_t Unpickler::Count(const Value& value, const char* what) const {
  if (value.kind != Kind::kInteger || !value.text.empty() || value.integer < 0 ||
      value.integer > kMaxSize) {
    throw Broken(std::string("has a tensor whose ") + what + " is no sensible number");
  }
  return value.integer;
}

// `bits` is None or a dict. With {"neg": True} the tensor's values are those of its storage with
// the other sign.
void Unpickler::CheckBits(const Value& bits) const {
  if (bits.kind == Kind::kNone || (bits.kind == Kind::kDict && bits.items.empty())) return;
  if (bits.kind != Kind::kDict) throw Broken("has a tensor whose bits are no dict");
  const std::string keys = KeysOf(bits);
  throw InvalidArgument(
      file_ + ": has a tensor that isn't stored as it is; torch.save noted " +
          (keys.empty() ? "bits" : keys) + " with it",
      "load the file in Python, call resolve_neg() and resolve_conj() of each tensor, and save "
      "them again by torch.save");
}

const PickledValue& Unpickler::RebuildTensor(const Value& arguments) {
  const auto& items = arguments.items;
  if (items.size() < 4 || items[0]->kind != Kind::kStorage || items[2]->kind != Kind::kTuple ||
      items[3]->kind != Kind::kTuple || items[2]->items.size() != items[3]->items.size()) {
    throw Broken("has a tensor without a storage, a size or strides");
  }
  if (items.size() > 6) CheckBits(*items[6]);
  Value& value = Make(Kind::kTensor);
  PickledTensor& tensor = value.tensor;
  tensor.storage = items[0]->tensor.storage;
  tensor.offset = Count(*items[1], "offset");
  int64_t last = tensor.offset;
  bool is_empty = false, fits = true;
  for (size_t d = 0; d < items[2]->items.size(); ++d) {
    const int64_t size = Count(*items[2]->items[d], "size");
    const int64_t stride = Count(*items[3]->items[d], "stride");
    int64_t step = 0;
    is_empty |= size == 0;
    fits &= size == 0 || !__builtin_mul_overflow(size - 1, stride, &step);
    fits &= !__builtin_add_overflow(last, step, &last);
    tensor.shape.push_back(size);
    tensor.strides.push_back(stride);
  }
  if (is_empty) tensor.offset = 0;
  if (!IsSensible(tensor.shape) || (!is_empty && (!fits || last >= tensor.storage.size))) {
    throw Broken("has a tensor of shape " + ToString(tensor.shape) +
                 " that is not inside its storage of " + std::to_string(tensor.storage.size) +
                 " elements");
  }
  return value;
}

// `id` is ("storage", type, key, device, size) and in files before 1.6 also a view or None. A view
// is (key, offset, size).
const PickledValue& Unpickler::LoadStorage(const Value& id) {
  const auto& items = id.items;
  if (id.kind != Kind::kTuple || items.size() < 5 || items.size() > 6 ||
      items[0]->kind != Kind::kString || items[0]->text != "storage" ||
      items[1]->kind != Kind::kFunction || items[1]->integer < kFirstStorage ||
      items[2]->kind != Kind::kString) {
    throw Broken("refers to what is no storage");
  }
  Value& value = Make(Kind::kStorage);
  PickledStorage& storage = value.tensor.storage;
  storage.dtype = kStorages[static_cast<size_t>(items[1]->integer - kFirstStorage)].dtype;
  storage.key = std::string(items[2]->text);
  storage.size = Count(*items[4], "storage's size");
  if (items.size() == 6 && items[5]->kind == Kind::kTuple) {
    const auto& view = items[5]->items;
    if (view.size() != 3) throw Broken("refers to what is no storage");
    storage.offset = Count(*view[1], "storage's offset");
    storage.size = Count(*view[2], "storage's size");
  }
  storages_.push_back(&storage);
  return value;
}

std::vector<std::pair<std::string, const PickledTensor*>> Unpickler::TensorsOf(
    const Value& value) const {
  constexpr char kHint[] = "save the model's weights with torch.save(model.state_dict(), FILE)";
  if (value.kind != Kind::kDict) throw InvalidArgument(file_ + ": holds no state dict", kHint);
  const Value* state = &value;
  std::string prefix;
  for (const std::string_view key : kStateDictKeys) {
    const Value* const inner = FindDict(value, key);
    if (inner == nullptr) continue;
    if (state != &value) throw InvalidArgument(file_ + ": holds two state dicts", kHint);
    state = inner;
    prefix = std::string(key) + ".";
  }
  std::vector<std::pair<std::string, const PickledTensor*>> tensors;
  for (size_t i = 0; i + 1 < state->items.size(); i += 2) {
    const Value& name = *state->items[i];
    const Value& item = *state->items[i + 1];
    if (name.kind == Kind::kString && item.kind == Kind::kTensor) {
      tensors.emplace_back(prefix + std::string(name.text), &item.tensor);
    }
  }
  if (tensors.empty() && !value.items.empty()) {
    throw InvalidArgument(file_ + ": holds a dict without tensors; its keys are " + KeysOf(*state),
                          kHint);
  }
  return tensors;
}

}  // namespace lathe
