// A job that trains a small BERT, from fresh weights that are a function of the seed, in any number
// of processes and on any device: nothing but the loop is compared.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {

struct DataParallelJob {
  double dropout = 0;
  int64_t num_samples = 45, batch_size = 8;  // the last batch is short
  int64_t accumulation = 1;
  double max_grad_norm = 0.5, weight_decay = 0.01;
  int ignore_every = 0;  // this often a label is -100
  bool shuffle = true, checkpointing = false;
  std::string precision = "no";
  ReducerOptions reducer = {.first_bucket_bytes = 2048, .bucket_bytes = 8192};
  int epochs = 2;
  bool shard = false, share = false, sgd = false;
  int64_t vocab = 700;  // large enough for its table to be sent by rows
  bool tcp = false;     // as if each process had a machine of its own
  std::string device = "cpu";
  double init_scale = 65536;   // of float16's losses
  bool print_weights = false;  // after the losses
  std::function<void(int rank, int64_t step)> before_batch = [](int, int64_t) {};
  std::function<void(int rank, int64_t step)> after_step = [](int, int64_t) {};
  int freeze_at = -1;  // the step before which the first layer is frozen, for two steps
};

struct TrainingResult {
  std::vector<double> losses;  // of all steps
  std::string rate, steps;     // the last rate, how many steps
  std::string skipped;         // how many more overflew in float16
  std::string hash;            // of the final parameters
  std::vector<double> weights;
};
// Trains; returns a result as text.
std::string Train(ProcessEnvironment env, const DataParallelJob& job);
TrainingResult ParseTraining(const std::string& said);

// Trains in n processes; all must end with the same words.
TrainingResult TrainInProcesses(int n, const DataParallelJob& job);

// Runs the job with 1 to `most` processes: losses agree with one's to `limit` of them.
void CompareWithOne(const DataParallelJob& job, double limit, int most = 4);
void ExpectSameLosses(const TrainingResult& a, const TrainingResult& b, double limit);

}  // namespace lathe
