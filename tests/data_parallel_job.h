// A job that trains a small BERT in any number of processes and on any device. The fresh weights
// are a function of the seed, so nothing but the training loop is compared.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {

struct DataParallelJob {
  std::string model_type = "bert", position_embedding_type = "absolute";
  double dropout = 0;
  int64_t num_samples = 45, batch_size = 8;  // the last batch is short
  int64_t accumulation = 1;
  double max_grad_norm = 0.5, weight_decay = 0.01;
  int ignore_every = 0;  // one label in so many is -100; 0: none
  bool shuffle = true, checkpointing = false;
  std::string precision = "no";
  ReducerOptions reducer = {.first_bucket_bytes = 2048, .bucket_bytes = 8192};
  int epochs = 2;
  bool shard = false, share = false, sgd = false;
  int64_t vocab = 700;             // large enough that its table is sent by rows
  bool tcp = false;                // true: each process acts as if on a machine of its own
  std::vector<int> machines = {};  // the numbers of processes of the machines; empty: one machine
  std::string device = "cpu";
  double init_scale = 65536;   // the scale of losses in float16
  bool print_weights = false;  // prints the weights after the losses
  std::function<void(int rank, int64_t step)> before_batch = [](int, int64_t) {};
  std::function<void(int rank, int64_t step)> after_step = [](int, int64_t) {};
  int freeze_at = -1;  // from this step on the first layer is frozen for two steps
};

struct TrainingResult {
  std::vector<double> losses;  // one for each step
  std::string rate, steps;     // the last learning rate, the number of steps
  std::string skipped;         // the number of steps that overflowed in float16
  std::string hash;            // hash of the final parameters
  std::vector<double> weights;
};
// Trains, and returns the result as text for ParseTraining.
std::string Train(ProcessEnvironment env, const DataParallelJob& job);
TrainingResult ParseTraining(const std::string& said);

// Trains in n processes. All must end with the same result.
TrainingResult TrainInProcesses(int n, const DataParallelJob& job);

// Runs the job with 1 to `most` processes. Their losses must agree with those of one process, with
// a relative error of at most `limit`.
void CompareWithOne(const DataParallelJob& job, double limit, int most = 4);
void ExpectSameLosses(const TrainingResult& a, const TrainingResult& b, double limit);

}  // namespace lathe
