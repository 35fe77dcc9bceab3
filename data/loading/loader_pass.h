// LoaderPass: one epoch's batches of a rank. Threads make them ahead of use, and the caller gets
// them in their order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lathe/data/loading/batch_source.h"
#include "lathe/data/loading/loader_passes.h"

namespace lathe {

class LoaderPass {
 public:
  static constexpr int64_t kUnknown = LoaderPasses::kUnknown;

  struct Plan {
    std::shared_ptr<const BatchSource> source;
    std::vector<int64_t> order = {};  // of the epoch's samples; not for a stream
    int64_t epoch = 0;
    int64_t batch_size = 1;          // of all ranks together
    int64_t num_batches = kUnknown;  // kUnknown: a stream, which is read to its end
    int64_t first_batch = 0;         // those before it are left out
    int64_t first_step = 0;          // the step of batch 0
    bool drop_last = false;          // of a stream
    StreamShuffle shuffle = {};      // of a stream
    int rank = 0, world_size = 1;
    int prefetch = 0, num_workers = 0;  // no threads if one of them is 0
  };
  struct Given {
    std::shared_ptr<const void> batch;  // null: the epoch is over
    std::shared_ptr<const BatchInfo> info;
  };

  // Enters itself in `passes`, which may be null.
  LoaderPass(Plan plan, std::shared_ptr<LoaderPasses> passes);
  ~LoaderPass();
  LoaderPass(const LoaderPass&) = delete;
  LoaderPass& operator=(const LoaderPass&) = delete;

  // Returns the next batch. If it could not be made, throws what went wrong. Then the epoch is
  // over.
  Given Next();

  int64_t epoch() const { return plan_.epoch; }
  int64_t given() const { return given_; }  // batches that the caller has received or left out
  int64_t batches_left() const { return batches_left_; }  // kUnknown: one at least

 private:
  // What a thread needs to make a batch.
  struct Ticket {
    int64_t number = 0;
    std::vector<int64_t> indices = {};  // of the global batch; empty: there is no such batch
    StreamSamples read = {};
    int64_t batches_left = 0;
    std::exception_ptr error = nullptr;
  };
  struct Made {
    Given given = {};
    int64_t batches_left = 0;
    std::exception_ptr error = nullptr;
  };

  Ticket Take();
  Ticket TakeFromStream();
  void ReadAhead();
  Made Make(const Ticket& ticket) const;
  void Run();
  Made Await();
  void Withdraw();

  const Plan plan_;
  std::shared_ptr<LoaderPasses> passes_;
  std::shared_ptr<LoaderPasses::Entry> entry_;
  int64_t given_ = 0, batches_left_ = 0;
  bool over_ = false;

  // Held by the thread that takes the next batch's samples, and by none while it makes the batch.
  std::mutex taking_;
  int64_t next_ = 0;  // the number of the next ticket
  std::unique_ptr<StreamReader> reader_;
  StreamSamples ahead_;  // the samples of the next ticket
  std::exception_ptr ahead_error_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Made> ready_;
  bool no_more_ = false;  // the last ticket has been taken
  bool stopped_ = false;  // the pass is being destroyed
  std::vector<std::thread> threads_;
};

}  // namespace lathe
