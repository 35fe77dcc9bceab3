// The memory that the passes of a classifier on BERT take.
#pragma once

#include "lathe/models/pass_memory.h"
#include "lathe/models/sequence_classifier.h"

namespace lathe {

// Works for any classifier whose config.json BertOptions reads, and whose head is a pooler, a
// dropout and a linear layer. Throws if a sum of bytes could overflow.
PassMemory BertPassMemory(const SequenceClassifier& model, const MemoryOptions& options);

}  // namespace lathe
