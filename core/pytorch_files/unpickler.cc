#include "lathe/core/pytorch_files/unpickler.h"

#include <algorithm>
#include <cstring>

#include "lathe/core/pytorch_files/pickle_operations.h"
#include "lathe/core/weight_files/stored_array.h"

namespace lathe {
namespace {

constexpr int kMaxDepth = 100;            // of containers in each other, and of marks
constexpr size_t kMaxValues = 1'000'000;  // of one pickle
constexpr size_t kMaxItems = 10'000'000;  // of all containers
constexpr uint64_t kMaxMemo = 1'000'000;

}  // namespace

Unpickler::Unpickler(std::string_view bytes, std::string file)
    : bytes_(bytes), file_(std::move(file)) {}

Error Unpickler::Broken(const std::string& what) const {
  return BrokenWeights(file_, "its pickle " + what);
}

Error Unpickler::Refused(const std::string& what) const {
  return InvalidArgument(
      file_ + ": " + what,
      "if you trust the file, load it in Python by torch.load(FILE, weights_only=False) and save "
      "a dict of its tensors alone by torch.save");
}

Error Unpickler::TooDeep() const {
  return Refused("its pickle is nested more than " + std::to_string(kMaxDepth) + " levels deep");
}

Error Unpickler::TooManyValues() const { return Refused("its pickle has too many values"); }

const PickledValue& Unpickler::Load() {
  stack_.clear();
  marks_.clear();
  memo_.clear();
  stopped_ = false;
  while (!stopped_) Step(static_cast<unsigned char>(Take(1)[0]));
  if (stack_.size() != 1 || !marks_.empty()) throw Broken("ends with values that nothing uses");
  return *stack_.back();
}

void Unpickler::Step(unsigned char op) {
  if (PushSimple(op) || PushText(op) || PushContainer(op) || ChangeContainer(op) || UseMemo(op) ||
      Call(op)) {
    return;
  }
  switch (op) {
    case kProto:
      if (const int version = TakeNumber<uint8_t>(); version < 2 || version > 5) {
        throw Broken("is of version " + std::to_string(version));
      }
      return;
    case kFrame:  // the following bytes in one piece, which changes nothing here
      TakeNumber<uint64_t>();
      return;
    case kStop:
      stopped_ = true;
      return;
    default:
      break;
  }
  if (const char* const other = OtherValueOf(op); other != nullptr) {
    throw Refused(std::string("its pickle holds ") + other +
                  ", which no plain file of weights needs");
  }
  throw Broken("has the unknown operation " + std::to_string(op) + " at byte " +
               std::to_string(at_ - 1));
}

// --- reading bytes ---

std::string_view Unpickler::Take(size_t size) {
  if (size > bytes_.size() - at_) throw Broken("is cut off");
  const std::string_view taken = bytes_.substr(at_, size);
  at_ += size;
  return taken;
}

template <typename T>
T Unpickler::TakeNumber() {
  T value;
  std::memcpy(&value, Take(sizeof value).data(), sizeof value);
  return value;
}

std::string_view Unpickler::TakeLine() {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) throw Broken("is cut off");
  const std::string_view line = Take(end - at_);
  Take(1);
  return line;
}

// --- the stack ---

PickledValue& Unpickler::Make(Kind kind) {
  if (values_.size() >= kMaxValues) throw TooManyValues();
  values_.emplace_back().kind = kind;
  return values_.back();
}

void Unpickler::Push(const Value& value) {
  if (stack_.size() >= kMaxValues) throw TooManyValues();
  stack_.push_back(&value);
}

const PickledValue& Unpickler::Pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) throw Broken("lacks a value");
  const Value& value = *stack_.back();
  stack_.pop_back();
  return value;
}

void Unpickler::PushInteger(int64_t integer, Kind kind) {
  Value& value = Make(kind);
  value.integer = integer;
  Push(value);
}

size_t Unpickler::PopMark() {
  if (marks_.empty()) throw Broken("lacks a mark");
  const size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

bool Unpickler::PushSimple(unsigned char op) {
  switch (op) {
    case kNoneValue:
      Push(Make(Kind::kNone));
      return true;
    case kNewTrue:
    case kNewFalse:
      PushInteger(op == kNewTrue, Kind::kBool);
      return true;
    case kBinInt:
      PushInteger(TakeNumber<int32_t>());
      return true;
    case kBinInt1:
      PushInteger(TakeNumber<uint8_t>());
      return true;
    case kBinInt2:
      PushInteger(TakeNumber<uint16_t>());
      return true;
    case kLong1: {
      const std::string_view bytes = Take(TakeNumber<uint8_t>());
      Value& value = Make(Kind::kInteger);
      value.text = bytes;
      if (bytes.size() <= sizeof value.integer) {
        const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
        value.integer = negative ? -1 : 0;
        std::memcpy(&value.integer, bytes.data(), bytes.size());
        value.text = {};
      }
      Push(value);
      return true;
    }
    case kBinFloat:
      Take(sizeof(double));
      Push(Make(Kind::kFloat));
      return true;
    default:
      return false;
  }
}

bool Unpickler::PushText(unsigned char op) {
  size_t size = 0;
  if (op == kBinUnicode || op == kBinString) {
    size = TakeNumber<uint32_t>();
  } else if (op == kShortBinUnicode || op == kShortBinString) {
    size = TakeNumber<uint8_t>();
  } else {
    return false;
  }
  Value& value = Make(Kind::kString);
  value.text = Take(size);
  Push(value);
  return true;
}

// --- containers ---

// Makes a tuple of the stack's values from `begin` on.
void Unpickler::PushTuple(size_t begin) {
  if (begin > stack_.size() || begin < (marks_.empty() ? 0 : marks_.back())) {
    throw Broken("lacks a value");
  }
  Value& tuple = Make(Kind::kTuple);
  AppendFrom(begin, tuple, Kind::kTuple);
  Push(tuple);
}

bool Unpickler::PushContainer(unsigned char op) {
  switch (op) {
    case kEmptyTuple:
      Push(Make(Kind::kTuple));
      return true;
    case kEmptyList:
      Push(Make(Kind::kList));
      return true;
    case kEmptyDict:
      Push(Make(Kind::kDict));
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      const size_t size = 1 + op - kTuple1;
      if (size > stack_.size()) throw Broken("lacks a value");
      PushTuple(stack_.size() - size);
      return true;
    }
    case kTupleFromMark:
      PushTuple(PopMark());
      return true;
    case kMark:
      if (marks_.size() >= kMaxDepth) {
        throw TooDeep();
      }
      marks_.push_back(stack_.size());
      return true;
    case kPopValue:
      Pop();
      return true;
    default:
      return false;
  }
}

void Unpickler::Append(Value& container, const Value& value) {
  container.depth = std::max(container.depth, value.depth + 1);
  if (container.depth > kMaxDepth) {
    throw TooDeep();
  }
  if (++num_items_ > kMaxItems) throw TooManyValues();
  container.items.push_back(&value);
}

// Moves the stack's values from `begin` on to the container.
void Unpickler::AppendFrom(size_t begin, Value& container, Kind kind) {
  if (begin > stack_.size()) throw Broken("lacks a value");
  if (kind == Kind::kDict && (stack_.size() - begin) % 2 != 0) throw Broken("has a key alone");
  // Without reserve: it would copy all items for each one that is appended alone.
  for (size_t i = begin; i < stack_.size(); ++i) Append(container, *stack_[i]);
  stack_.resize(begin);
}

// Returns the container of the wanted kind at this place of the stack.
PickledValue& Unpickler::Container(size_t index, Kind kind) {
  if (index >= stack_.size() || stack_[index]->kind != kind) {
    throw Broken(kind == Kind::kDict ? "sets an item of what is no dict"
                                     : "appends to what is no list");
  }
  return const_cast<Value&>(*stack_[index]);  // this object made it
}

bool Unpickler::ChangeContainer(unsigned char op) {
  const bool one = op == kAppendOne || op == kSetItem;
  if (!one && op != kAppends && op != kSetItems) return false;
  const Kind kind = op == kAppendOne || op == kAppends ? Kind::kList : Kind::kDict;
  size_t begin = 0;
  if (one) {
    const size_t size = kind == Kind::kList ? 1 : 2;
    if (stack_.size() < size) throw Broken("lacks a value");
    begin = stack_.size() - size;
    if (!marks_.empty() && begin <= marks_.back()) throw Broken("lacks a value");
  } else {
    begin = PopMark();
  }
  if (begin == 0) throw Broken("lacks a value");
  AppendFrom(begin, Container(begin - 1, kind), kind);
  return true;
}

// --- the memo ---

void Unpickler::Remember(uint64_t key) {
  if (key > kMaxMemo) throw Broken("has the memo number " + std::to_string(key));
  if (stack_.empty()) throw Broken("lacks a value");
  memo_[key] = stack_.back();
}

bool Unpickler::UseMemo(unsigned char op) {
  switch (op) {
    case kBinPut:
      Remember(TakeNumber<uint8_t>());
      return true;
    case kLongBinPut:
      Remember(TakeNumber<uint32_t>());
      return true;
    case kMemoize:
      Remember(memo_.size());
      return true;
    case kBinGet:
    case kLongBinGet: {
      const uint64_t key = op == kBinGet ? TakeNumber<uint8_t>() : TakeNumber<uint32_t>();
      const auto found = memo_.find(key);
      if (found == memo_.end()) {
        throw Broken("lacks the value of memo number " + std::to_string(key));
      }
      Push(*found->second);
      return true;
    }
    default:
      return false;
  }
}

// --- functions ---

bool Unpickler::Call(unsigned char op) {
  switch (op) {
    case kGlobal: {
      const std::string_view module = TakeLine();
      PushFunction(module, TakeLine());
      return true;
    }
    case kStackGlobal: {
      const Value& name = Pop();
      const Value& module = Pop();
      if (name.kind != Kind::kString || module.kind != Kind::kString) {
        throw Broken("has a function without a name");
      }
      PushFunction(module.text, name.text);
      return true;
    }
    case kReduceCall: {
      const Value& arguments = Pop();
      const Value& function = Pop();
      Push(Reduce(function, arguments));
      return true;
    }
    case kBinPersId:
      Push(LoadStorage(Pop()));
      return true;
    case kBuildObject:
      // The attributes of a state dict are the versions of its modules, which don't matter.
      Pop();
      if (stack_.empty() || stack_.back()->kind != Kind::kDict) {
        throw Broken("sets attributes of what is no state dict");
      }
      return true;
    default:
      return false;
  }
}

}  // namespace lathe
