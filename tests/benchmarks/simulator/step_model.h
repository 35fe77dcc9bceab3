// Computes how long a training step of several ranks takes, from the calls that it makes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lathe/distributed/groups/machine_layout.h"
#include "lathe/tests/benchmarks/simulator/link_model.h"

namespace lathe::simulator {

// What a step of a model computes and exchanges.
struct StepWork {
  struct Bucket {
    int64_t num_elements = 0;
    int64_t products =
        0;  // its parameters that products use: the backward pass takes time for them
  };
  std::vector<Bucket> buckets;              // those of the reducer, without the table's
  int64_t vocab_size = 0, hidden_size = 0;  // of the table, the last bucket
  int64_t tail = 0;                         // elements of a bucket's end that travel with records
};

// Returns the work of a BERT for classification, with the reducer's own buckets. `size` is "base",
// "large" or, for tests, "tiny". Throws InvalidArgument for others.
StepWork WorkOf(const std::string& size);

struct ComputeModel {
  int64_t tokens_of_rank = 32 * 128;  // in a step
  double flops_of_rank = 1e12;        // a second
};

struct StepCost {
  double seconds = 0, in_collectives = 0, hidden = 0;
  double HiddenShare() const { return in_collectives > 0 ? hidden / in_collectives : 1; }
};

// Costs of the steps of one layout over several kinds of links.
class StepModel {
 public:
  StepModel(MachineLayout layout, std::vector<LinkModel> links, ComputeModel compute);

  // Returns the cost of a step over each kind of link.
  std::vector<StepCost> Costs(const StepWork& work);
  // The bytes that the machine that sends most sends in the last step of Costs, and the messages
  // of all machines.
  int64_t bytes_of_machine() const { return bytes_; }
  int64_t num_messages() const { return messages_; }

 private:
  struct CallCost {
    std::vector<double> seconds;  // over each kind of link
    int64_t bytes = 0, messages = 0;
  };
  enum class Kind { kAllReduce, kReduceScatter, kAllGather, kAllGatherStripes };
  const CallCost& Of(Kind kind, int64_t size);
  struct Calls {
    std::vector<const CallCost*> reduced, gathered;  // one for each bucket
    std::vector<const CallCost*> at_end;             // of the backward pass
  };
  StepCost CostOver(size_t link, const StepWork& work, const Calls& calls) const;

  const MachineLayout layout_;
  const std::vector<LinkModel> links_;
  const ComputeModel compute_;
  std::map<std::pair<Kind, int64_t>, CallCost> known_;
  int64_t bytes_ = 0, messages_ = 0;
};

// Returns the expected number of different words among so many tokens of Zipf's law.
double ExpectedWords(int64_t vocab_size, double num_tokens);

}  // namespace lathe::simulator
