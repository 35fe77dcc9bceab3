#include "lathe/train/callbacks/state_callback.h"

#include "lathe/core/base/file.h"

namespace lathe {

void StateCallback::OnSave(const TrainingArguments&, const TrainerState& state, TrainerControl&,
                           const std::string& dir) {
  WriteFileAtomically(dir + "/trainer_state.json", state.ToText());
}

}  // namespace lathe
