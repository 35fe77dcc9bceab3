// The same training in one process and in several, compared with each other, on the CPU.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "lathe/tests/data_parallel_job.h"

namespace lathe {
namespace {

using Job = DataParallelJob;

constexpr double kLimit = 1e-6;

TEST(DataParallel, LossesAreThoseOfOneProcess) { CompareWithOne({}, kLimit); }

TEST(DataParallel, WithDropoutToo) { CompareWithOne({.dropout = 0.2}, kLimit); }

TEST(DataParallel, AccumulationAveragesOverTheWindow) {
  // An epoch has 6 batches in windows of 4 and 2; the last batch is short.
  CompareWithOne({.dropout = 0.1, .accumulation = 4}, kLimit);
}

TEST(DataParallel, FewerSamplesThanProcesses) {
  CompareWithOne({.dropout = 0.1, .num_samples = 11, .batch_size = 3}, kLimit);
}

TEST(DataParallel, IgnoredLabelsCountNowhere) {
  CompareWithOne({.accumulation = 2, .ignore_every = 3}, kLimit);
}

TEST(DataParallel, GradientCheckpointing) {
  CompareWithOne({.dropout = 0.1, .checkpointing = true}, kLimit, 2);
}

// All layers add to the gradient of MPNet's table of biases. With checkpoints each of them does so
// in a backward pass of its own.
TEST(DataParallel, ATableOfAllLayers) {
  for (const bool checkpointing : {false, true}) {
    CompareWithOne({.model_type = "mpnet", .dropout = 0.1, .checkpointing = checkpointing}, kLimit,
                   2);
  }
}

// The position table gets no gradient.
TEST(DataParallel, RelativePositions) {
  CompareWithOne({.position_embedding_type = "relative_key_query", .dropout = 0.1}, kLimit, 2);
}

TEST(DataParallel, WithoutOverlap) {
  CompareWithOne({.reducer = {.first_bucket_bytes = 4, .bucket_bytes = 4, .overlap = false}},
                 kLimit, 2);
}

// Rank 0, which has the store, is done long before rank 1.
TEST(DataParallel, ALateRankFindsNobodyLost) {
  Job job{.epochs = 1, .tcp = true};
  job.after_step = [](int rank, int64_t step) {
    if (rank == 1 && step == 6) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  EXPECT_EQ(TrainInProcesses(2, job).losses.size(), 6u);
}

TEST(DataParallel, OneBucket) { CompareWithOne({.reducer = {}}, kLimit, 3); }

// Gradients are compressed between machines only.
TEST(DataParallel, CompressedGradients) {
  CompareWithOne({.reducer = {.compression = "bf16"}}, kLimit, 2);
  CompareWithOne({.reducer = {.compression = "bf16"}, .tcp = true}, 2e-2, 2);
}

// A window's gradients are those of one batch with all its samples.
TEST(DataParallel, AccumulationIsALargerBatch) {
  const Job parts{
      .num_samples = 44, .batch_size = 4, .accumulation = 4, .shuffle = false, .epochs = 1};
  Job whole = parts;
  whole.batch_size = 16;
  whole.accumulation = 1;
  const TrainingResult a = TrainInProcesses(2, parts), b = TrainInProcesses(2, whole);
  ASSERT_EQ(a.losses.size(), b.losses.size());
  ASSERT_EQ(a.losses.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 2e-6);
}

// Compares three ways of updating: each process updates everything, its own part, or its own part
// in memory that all share. The last two give the same bits. The first gives the same bits, too, if
// the gradients' norm plays no part.
void CompareSharded(Job job, double limit = kLimit) {
  for (const int n : {2, 3}) {
    SCOPED_TRACE(std::to_string(n) + " processes");
    job.shard = false;
    const TrainingResult whole = TrainInProcesses(n, job);
    job.shard = true;
    const TrainingResult sharded = TrainInProcesses(n, job);
    if (job.max_grad_norm == 0) {
      EXPECT_EQ(sharded.losses, whole.losses);
      EXPECT_EQ(sharded.hash, whole.hash);
    }
    ExpectSameLosses(sharded, whole, limit);
    job.share = true;
    const TrainingResult shared = TrainInProcesses(n, job);
    EXPECT_EQ(shared.losses, sharded.losses);
    EXPECT_EQ(shared.hash, sharded.hash);
    job.share = false;
  }
}

TEST(ShardedOptimizer, SameBits) {
  CompareSharded({.dropout = 0.1, .max_grad_norm = 0});
  CompareSharded({.max_grad_norm = 0, .sgd = true});
}

TEST(ShardedOptimizer, Clipping) { CompareSharded({.dropout = 0.1}); }

TEST(ShardedOptimizer, Accumulation) {
  CompareSharded({.accumulation = 4, .max_grad_norm = 0, .ignore_every = 3});
  CompareSharded({.accumulation = 4});
}

TEST(ShardedOptimizer, BFloat16) {
  CompareSharded({.max_grad_norm = 0, .precision = "bf16"});
  CompareSharded({.max_grad_norm = 0, .precision = "bf16", .sgd = true});
  CompareSharded({.max_grad_norm = 0, .reducer = {.compression = "bf16"}, .vocab = 100});
}

// The table is cut into several lots of rows, and each rank has a stripe of every lot. Only rows
// that ever had a gradient are sent.
TEST(ShardedOptimizer, RowsOfATable) {
  CompareSharded({.dropout = 0.1, .max_grad_norm = 0, .weight_decay = 0, .vocab = 2500});
  CompareSharded({.accumulation = 4, .weight_decay = 0, .ignore_every = 3, .vocab = 2500});
  CompareSharded(
      {.max_grad_norm = 0, .weight_decay = 0, .precision = "bf16", .vocab = 2500, .freeze_at = 3});
  CompareWithOne({.dropout = 0.1, .weight_decay = 0, .shard = true, .vocab = 2500}, kLimit);
}

// Every rank has all gradients of the last bucket's end.
TEST(ShardedOptimizer, WithoutLargeTable) {
  CompareSharded({.max_grad_norm = 0, .vocab = 100});
  CompareSharded({.max_grad_norm = 0, .reducer = {}, .sgd = true, .vocab = 100});
}

TEST(ShardedOptimizer, WithoutOverlap) {
  CompareSharded({.max_grad_norm = 0,
                  .reducer = {.first_bucket_bytes = 4, .bucket_bytes = 4, .overlap = false}});
}

// The ranks of a machine add up in its memory what then travels to the other machines.
TEST(DataParallel, SeveralMachines) {
  const TrainingResult one = TrainInProcesses(1, {.dropout = 0.1});
  for (const std::vector<int>& machines : {std::vector<int>{2, 2}, {3, 1}, {1, 2, 2}}) {
    const int n = std::accumulate(machines.begin(), machines.end(), 0);
    for (const bool shard : {false, true}) {
      ExpectSameLosses(TrainInProcesses(n, {.dropout = 0.1, .shard = shard, .machines = machines}),
                       one, kLimit);
    }
  }
}

TEST(ShardedOptimizer, SeveralMachines) {
  Job job = {.max_grad_norm = 0, .machines = {2, 2}};
  const TrainingResult whole = TrainInProcesses(4, job);
  job.shard = true;
  const TrainingResult sharded = TrainInProcesses(4, job);
  EXPECT_EQ(sharded.losses, whole.losses);
  EXPECT_EQ(sharded.hash, whole.hash);
}

TEST(ShardedOptimizer, OverTcp) { CompareSharded({.dropout = 0.1, .tcp = true}); }

// Freezing changes the buckets, so moments move to other ranks.
TEST(ShardedOptimizer, ParametersFrozenForAWhile) {
  CompareSharded({.max_grad_norm = 0, .freeze_at = 3});
  CompareSharded({.max_grad_norm = 0, .reducer = {}, .sgd = true, .vocab = 100, .freeze_at = 4});
}

TEST(ShardedOptimizer, RelativePositions) {
  CompareSharded({.model_type = "mpnet", .dropout = 0.1, .max_grad_norm = 0});
  CompareSharded({.position_embedding_type = "relative_key", .dropout = 0.1, .max_grad_norm = 0});
}

TEST(ShardedOptimizer, AsOneProcess) {
  CompareWithOne({.dropout = 0.1, .shard = true}, kLimit);
  CompareWithOne({.dropout = 0.1, .shard = true, .share = true}, kLimit);
}

}  // namespace
}  // namespace lathe
