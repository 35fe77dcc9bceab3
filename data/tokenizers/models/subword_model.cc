#include "lathe/data/tokenizers/models/subword_model.h"

#include <absl/container/flat_hash_map.h>

#include <utility>

namespace lathe {

struct Vocabulary::Ids : absl::flat_hash_map<std::string, int32_t> {};

Vocabulary::Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  const auto ids = std::make_shared<Ids>();
  ids->reserve(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) (*ids)[tokens_[i]] = static_cast<int32_t>(i);
  ids_ = ids;
}

std::optional<int32_t> Vocabulary::Find(std::string_view token) const {
  if (ids_ == nullptr) return std::nullopt;
  const auto it = ids_->find(absl::string_view(token.data(), token.size()));
  return it == ids_->end() ? std::nullopt : std::optional(it->second);
}

}  // namespace lathe
