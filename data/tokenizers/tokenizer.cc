#include "lathe/data/tokenizers/tokenizer.h"

#include <algorithm>

#include "lathe/core/base/error.h"

namespace lathe {

std::pair<int64_t, int64_t> LongestFirst(int64_t n1, int64_t n2, int64_t budget) {
  if (n1 + n2 <= budget) {
    return {n1, n2};
  }
  int64_t shorter = std::min(n1, n2);
  int64_t longer = shorter > budget ? shorter : std::max(shorter, budget - shorter);
  if (shorter + longer > budget) {
    shorter = budget / 2;
    longer = shorter + budget % 2;
  }
  return n1 > n2 ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

int64_t Tokenizer::NumSpecialTokens(bool pair) const {
  const std::vector<TemplateItem>& items = pair ? pair_template_ : single_template_;
  return std::count_if(items.begin(), items.end(), [](const TemplateItem& item) {
    return item.kind == TemplateItem::Kind::kSpecial;
  });
}

Encoding Tokenizer::Encode(std::string_view text, std::optional<std::string_view> pair,
                           int64_t max_length) const {
  using Kind = TemplateItem::Kind;
  if (pair && pair->empty()) {
    pair.reset();
  }
  const std::vector<TemplateItem>& items = pair ? pair_template_ : single_template_;
  std::vector<int32_t> first = EncodeText(text);
  std::vector<int32_t> second = pair ? EncodeText(*pair) : std::vector<int32_t>();
  Encoding encoding;
  if (max_length != 0) {
    const int64_t num_special = NumSpecialTokens(pair.has_value());
    Check(max_length >= num_special, "tokenizer", "max_length must be at least ", num_special,
          ", the number of special tokens, but is ", max_length);
    const auto [n1, n2] =
        LongestFirst(std::ssize(first), std::ssize(second), max_length - num_special);
    // A single text shares the budget with nothing: LongestFirst gives it all.
    encoding.truncated = n1 < std::ssize(first) || n2 < std::ssize(second);
    for (const auto& [tokens, left] : {std::pair(&first, n1), std::pair(&second, n2)}) {
      const auto cut = tokens->begin() + (truncates_left_ ? 0 : left);
      tokens->erase(cut, cut + (std::ssize(*tokens) - left));
    }
  }

  const size_t total = first.size() + second.size() + items.size();
  encoding.input_ids.reserve(total);
  encoding.token_type_ids.reserve(total);
  const bool types = makes_token_type_ids();
  for (const TemplateItem& item : items) {
    std::vector<int32_t>& ids = encoding.input_ids;
    if (item.kind == Kind::kSpecial) {
      ids.push_back(item.id);
    } else {
      const std::vector<int32_t>& part = item.kind == Kind::kFirst ? first : second;
      ids.insert(ids.end(), part.begin(), part.end());
    }
    encoding.token_type_ids.resize(ids.size(), types ? item.type_id : 0);
  }
  return encoding;
}

}  // namespace lathe
