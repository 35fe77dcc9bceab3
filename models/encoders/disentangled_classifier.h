// What the versions of DeBERTa share: a classifier on a DisentangledEncoder, and the memory that it
// takes.
#pragma once

#include <cstdint>
#include <memory>

#include "lathe/models/encoders/disentangled_options.h"
#include "lathe/models/pass_memory.h"
#include "lathe/models/sequence_classifier.h"

namespace lathe {

// Makes a classifier: the encoder under DeBERTa's pooler.
std::shared_ptr<SequenceClassifier> MakeDisentangledClassifier(const PretrainedConfig& config,
                                                               uint64_t seed,
                                                               const ConfigReader& reader,
                                                               const DisentangledOptions& options);

// Tells `lathe estimate-memory` what the passes of such a classifier take.
PassMemory DisentangledMemory(const Module& classifier, const DisentangledOptions& encoder,
                              const MemoryOptions& options);

}  // namespace lathe
