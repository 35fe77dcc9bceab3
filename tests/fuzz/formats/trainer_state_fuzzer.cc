// trainer_state.json of a checkpoint: what was done so far, and the places of the loader and of the
// loss scaler.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/data_loader.h"
#include "lathe/optim/grad_scaler.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/train/trainer_state.h"

namespace {

using nlohmann::json;

// Takes the member of the Trainer's own state, as Trainer::LoadCheckpoint does.
lathe::StateDict MemberOf(const lathe::StateDict& own, const char* key) {
  lathe::StateDict member;
  member.values = own.Get<json>("trainer", key);
  return member;
}

std::shared_ptr<lathe::TokenizedDataset> FourTexts() {
  auto data = std::make_shared<lathe::TokenizedDataset>();
  data->has_labels = true;
  data->num_labels = 2;
  for (int i = 0; i < 4; ++i) {
    data->input_ids.push_back(i);
    data->token_type_ids.push_back(0);
    data->offsets.push_back(std::ssize(data->input_ids));
    data->classes.push_back(i % 2);
  }
  return data;
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  const std::string path = ScratchFile("trainer_state.json", input);
  const json saved = ReadTrainerState(path);
  const StateDict own = OwnState(saved, path);
  CallAll({[&] {
             TrainerState state;
             state.LoadJson(saved, path);
             state.ToJson();
           },
           [&] {
             DataLoader loader(FourTexts(), {.batch_size = 2, .prefetch = 0});
             loader.LoadStateDict(MemberOf(own, "loader"));
             for (const Batch& batch : loader) static_cast<void>(batch);
           },
           [&] {
             GradScaler scaler;
             scaler.LoadStateDict(MemberOf(own, "scaler"));
           }});
}
