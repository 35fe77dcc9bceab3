#include "lathe/data/tokenizers/models/subword_model.h"

#include <utility>

namespace lathe {

Vocabulary::Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  ids_.reserve(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    ids_[tokens_[i]] = static_cast<int32_t>(i);
  }
}

std::optional<int32_t> Vocabulary::Find(std::string_view token) const {
  const auto it = ids_.find(absl::string_view(token.data(), token.size()));
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace lathe
