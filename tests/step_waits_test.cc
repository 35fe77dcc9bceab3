// A training step on the emulated device: the host waits for nothing.
#include <gtest/gtest.h>

#include "lathe/data/data_loader.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/emulator/emulator.h"

namespace lathe {
namespace {

TEST(StepOnADevice, WaitsForNothing) {
  auto data = std::make_shared<TokenizedDataset>();
  data->has_labels = true;
  data->num_labels = 2;
  for (int32_t i = 0; i < 160; ++i) {
    for (int32_t t = 0; t <= i % 9; ++t) data->input_ids.push_back((i * 7 + t * 3) % 50);
    data->token_type_ids.resize(data->input_ids.size());
    data->offsets.push_back(std::ssize(data->input_ids));
    data->classes.push_back(i % 2);
  }
  for (const std::string precision : {"no", "bf16"}) {
    for (const bool graphs : {true, false}) {
      SCOPED_TRACE(precision + (graphs ? ", graphs" : ""));
      Accelerator accelerator(
          {.mixed_precision = precision, .device = "cuda", .step_graphs = graphs});
      const auto model = AutoModelForSequenceClassification::FromConfig(
          PretrainedConfig::FromJson({{"architectures", {"BertForSequenceClassification"}},
                                      {"model_type", "bert"},
                                      {"vocab_size", 50},
                                      {"hidden_size", 16},
                                      {"num_hidden_layers", 2},
                                      {"num_attention_heads", 2},
                                      {"intermediate_size", 36},
                                      {"max_position_embeddings", 16},
                                      {"type_vocab_size", 2}}));
      AdamW optimizer(DecayGroups(model->Parameters(), 0.1), {.lr = 1e-2});
      DataLoader loader(data, {.batch_size = 8, .shuffle = true});
      const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 100});
      accelerator.Prepare(loader, *model, optimizer, *scheduler);
      model->Train();
      StepGuard guard;
      Tensor norm;
      int64_t step = 0, waits = 0, graph_launches = 0;
      for (const Batch& batch : loader) {
        if (step++ == 4) {
          waits = emulator::NumWaits();
          graph_launches = emulator::NumGraphLaunches();
        }
        accelerator.Backward(*model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
        norm = guard.Clip(optimizer, 1.0, accelerator.LastLosses());
        optimizer.Step();
        scheduler->Step();
        optimizer.ZeroGrad();
      }
      EXPECT_EQ(emulator::NumWaits(), waits);
      EXPECT_EQ(emulator::NumGraphLaunches() - graph_launches, graphs ? 16 : 0);
      EXPECT_GT(norm.Item(), 0);
      EXPECT_GT(emulator::NumWaits(), waits);
      EXPECT_EQ(accelerator.TakeLosses().size(), 20u);
    }
  }
}

}  // namespace
}  // namespace lathe
