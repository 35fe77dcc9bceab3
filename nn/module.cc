#include "lathe/nn/module.h"

#include <map>
#include <sstream>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/nn/arena.h"

namespace lathe {

void Module::CheckIsNew(const std::string& name) const {
  for (const Entry& entry : entries_) {
    Check(name.empty() || entry.name != name, "module", "\"", name,
          "\" is registered already; each part needs a name of its own");
  }
}

Tensor Module::RegisterParameter(std::string name, Shape shape, Init init, bool decays,
                                 bool is_table) {
  CheckIsNew(name);
  Tensor tensor = Tensor::Unallocated(std::move(shape));
  tensor.SetRequiresGrad(true);
  entries_.push_back({name, {name, tensor, init, decays, is_table}, nullptr});
  return tensor;
}

Tensor Module::RegisterConstant(std::string name, Shape shape, Init init) {
  Tensor tensor = RegisterParameter(std::move(name), std::move(shape), init, /*decays=*/false);
  return tensor.SetRequiresGrad(false);
}

void Module::RegisterModule(std::string name, std::shared_ptr<Module> module) {
  CheckIsNew(name);
  entries_.push_back({std::move(name), {}, std::move(module)});
}

namespace {

// Returns the prefix of the paths below a module.
std::string Below(const std::string& prefix, const std::string& name) {
  return name.empty() ? prefix : prefix + name + ".";
}

}  // namespace

void Module::Collect(const std::string& prefix, std::vector<Parameter>& out) const {
  for (const Entry& entry : entries_) {
    if (entry.module != nullptr) {
      entry.module->Collect(Below(prefix, entry.name), out);
    } else {
      out.push_back(entry.parameter);
      out.back().name = prefix + entry.name;
    }
  }
}

std::vector<Parameter> Module::Parameters() const {
  std::vector<Parameter> parameters;
  Collect("", parameters);
  return parameters;
}

int64_t Module::NumParameters() const {
  int64_t n = 0;
  for (const Parameter& p : Parameters()) n += p.tensor.numel();
  return n;
}

void Module::Initialize(uint64_t seed) {
  std::vector<Parameter> parameters = Parameters();
  ParameterArena::FindOrCreate(parameters);
  for (Parameter& p : parameters) Fill(p.tensor, p.init, seed, p.name);
}

void Module::To(Device device) {
  std::map<std::shared_ptr<Storage>, std::shared_ptr<Storage>> moved;
  for (const Parameter& p : Parameters()) {
    TensorImpl& impl = *p.tensor.impl();
    if (impl.device == device) continue;
    if (impl.storage != nullptr) {
      std::shared_ptr<Storage>& there = moved[impl.storage];
      if (there == nullptr) {
        const Tensor whole = Tensor::Unallocated({impl.storage->bytes()}, DType::kU8, impl.device);
        whole.impl()->storage = impl.storage;
        const AllocationTag allocation_tag = AllocationTag::State("parameters");
        there = whole.To(device).impl()->storage;
      }
      impl.storage = there;
    }
    const AllocationTag allocation_tag = AllocationTag::State("gradients");
    const Tensor grad = p.tensor.grad();
    Tensor(p.tensor).SetGrad(grad.defined() ? grad.To(device) : grad);
    impl.device = device;
    impl.low_precision = nullptr;
    impl.low_precision_version = -1;
  }
}

Device Module::device() const {
  const std::vector<Parameter> parameters = Parameters();
  return parameters.empty() ? Device{} : parameters[0].tensor.device();
}

void Module::Train(bool training) {
  training_ = training;
  for (const Entry& entry : entries_) {
    if (entry.module != nullptr) entry.module->Train(training);
  }
}

void Module::SetComputeDType(DType dtype) {
  Check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, "module",
        "the compute dtype must be float32, bfloat16 or float16 but is ", ToString(dtype));
  compute_dtype_ = dtype;
  for (const Entry& entry : entries_) {
    if (entry.module != nullptr) entry.module->SetComputeDType(dtype);
  }
}

void Module::SetGradientCheckpointing(bool enabled) {
  gradient_checkpointing_ = enabled;
  for (const Entry& entry : entries_) {
    if (entry.module != nullptr) entry.module->SetGradientCheckpointing(enabled);
  }
}

void Module::CollectModes(std::string& out) const {
  out += static_cast<char>(static_cast<int>(compute_dtype_) * 4 +
                           (gradient_checkpointing_ ? 2 : 0) + (training_ ? 1 : 0));
  for (const Entry& entry : entries_) {
    if (entry.module != nullptr) entry.module->CollectModes(out);
  }
}

std::string Module::Modes() const {
  std::string modes;
  CollectModes(modes);
  return modes;
}

std::string ExactText(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

void Module::CollectSettings(const std::string& prefix, NamedSettings& out) const {
  for (auto& [name, value] : OwnSettings()) out.emplace_back(prefix + name, std::move(value));
  for (const Entry& entry : entries_) {
    if (entry.module != nullptr) entry.module->CollectSettings(Below(prefix, entry.name), out);
  }
}

NamedSettings Module::Settings() const {
  NamedSettings settings;
  CollectSettings("", settings);
  return settings;
}

}  // namespace lathe
