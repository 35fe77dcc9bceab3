// What goes wrong in loops over loaders, with one rank and with several.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/loading/hdf5_dataset.h"
#include "lathe/data/loading/samplers.h"
#include "lathe/distributed/accelerator_loaders_testing.h"

namespace lathe {
namespace {

TEST(GeneralLoop, RefusesDifferentData) {
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              DataLoader loader(Rows(5 + env.rank), {.batch_size = 2});
              accelerator.Prepare(loader);
            }),
            "[preflight] rank 1 has dataset of size 6 but rank 0 has dataset of size 5");
  const std::string said = Refusal([](Accelerator& accelerator, const Env& env) {
    const TensorDataset<2> data = Rows(5);
    if (env.rank == 1) data.tensors()[0].data<float>()[7] += 1;
    DataLoader loader(data, {.batch_size = 2});
    accelerator.Prepare(loader);
  });
  EXPECT_TRUE(said.starts_with("[preflight] rank 1 has dataset with fingerprint ")) << said;
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              DataLoader loader(Rows(5),
                                {.batch_size = 2, .sampler = RandomSampler(5, 5 + env.rank)});
              accelerator.Prepare(loader);
            }),
            "[preflight] rank 1 has samples of the sampler 6 but rank 0 has samples of the "
            "sampler 5");
}

// If Get throws on one rank, that rank names the sample. The others end soon.
TEST(GeneralLoop, AGetThatThrowsEndsTheJob) {
  for (const int n : {1, 2, 3}) {
    for (const bool in_stream : {false, true}) {
      const auto results = RunRanks(n, [&](const Env& env) {
        Accelerator accelerator(Options(env));
        Mlp model;
        if (in_stream) {
          struct Bad : RowStream {
            Bad() : RowStream(Rows(20)) {}
            std::function<std::optional<std::array<Tensor, 2>>()> Start(
                int64_t epoch) const override {
              return [next = RowStream::Start(epoch), i = 0]() mutable {
                if (i++ == 13) throw std::runtime_error("torn");
                return next();
              };
            }
          };
          DataLoader train(Bad(), {.batch_size = 6});
          return Train(accelerator, model, train);
        }
        const MapDataset bad(Subset(Rows(20), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}),
                             [](std::array<Tensor, 2> row) {
                               if (row[0].data<float>()[0] == std::sin(static_cast<float>(7 * 13)))
                                 throw std::runtime_error("torn");
                               return row;
                             });
        DataLoader train(bad, {.batch_size = 6});
        return Train(accelerator, model, train);
      });
      int told = 0;
      for (const RankResult& result : results) {
        EXPECT_NE(result.exit_code, 0);
        EXPECT_LT(result.seconds, 15);
        told += result.said == (in_stream ? "[data_loader] sample 13 of the stream: torn"
                                          : "[data_loader] sample 13: torn");
      }
      EXPECT_EQ(told, in_stream ? n : 1) << results[0].said;
    }
  }
}

// One rank has a bad file. It names the file and what is wrong, and the others end soon, too.
TEST(GeneralLoop, ABadHdf5FileEndsTheJob) {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"nothing", ": has no dataset \"nothing\"; it has "},
      {"short", ": dataset \"short\" has 9 rows but \"inputs\" has 10"},
      {"cut", ": HDF5 can't read it"},
      {"cut later", ": is cut short"}};
  for (const int n : {1, 2, 3}) {
    for (const auto& [fault, message] : faults) {
      SCOPED_TRACE(fault + ", " + std::to_string(n) + " ranks");
      const std::string stem = testing::TempDir() + "bad_hdf5_";
      const auto results = RunRanks(n, [&, fault = fault](const Env& env) {
        const bool bad = env.rank == n - 1;
        const std::string path = stem + std::to_string(env.rank) + ".h5";
        std::filesystem::copy_file("tests/golden/hdf5_tables/plain.h5", path,
                                   std::filesystem::copy_options::overwrite_existing);
        Accelerator accelerator(Options(env));
        if (bad && fault == "cut") std::filesystem::resize_file(path, 2000);
        const bool other_column = bad && (fault == "nothing" || fault == "short");
        DataLoader loader(Hdf5Dataset(path, {"inputs", other_column ? fault : "targets"}),
                          {.batch_size = 3, .prefetch = 0});
        accelerator.Prepare(loader);
        for (auto& [inputs, targets] : loader) {
          accelerator.GatherForMetrics(targets);
          if (bad && fault == "cut later") std::filesystem::resize_file(path, 500);
        }
        return std::string("no error");
      });
      for (const RankResult& result : results) {
        EXPECT_NE(result.exit_code, 0) << result.said;
        EXPECT_LT(result.seconds, 15);
        EXPECT_EQ(result.said.find('\n'), std::string::npos) << result.said;
      }
      const std::string path = stem + std::to_string(n - 1) + ".h5";
      EXPECT_NE(results.back().said.find(path + message), std::string::npos) << results.back().said;
    }
  }
}

TEST(GeneralLoop, ACollateFunctionThatReturnsNothing) {
  for (const int n : {1, 2, 3}) {
    const auto results = RunRanks(n, [&](const Env& env) {
      Accelerator accelerator(Options(env));
      Mlp model;
      DataLoader train(Rows(20), {.batch_size = 6},
                       [](std::vector<std::array<Tensor, 2>>) { return TensorBatch<2>(); });
      return Train(accelerator, model, train);
    });
    int told = 0;
    for (const RankResult& result : results) {
      const bool is_own = result.said.starts_with(
          "[collate] the collate function returned nothing; the batch has samples ");
      told += is_own;
      // A rank may hear of the others' end before its own function is called.
      EXPECT_TRUE(is_own || result.said.find(" has ended") != std::string::npos) << result.said;
      EXPECT_LT(result.seconds, 15);
    }
    EXPECT_GT(told, 0) << n;
  }
}

}  // namespace
}  // namespace lathe
