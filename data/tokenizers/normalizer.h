// Normalizers: the part of a tokenizer.json that rewrites a text before it is cut into words.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

namespace lathe {

// Rewrites a text. Thread-safe.
class Normalizer {
 public:
  // Rewrites `text`, whose first `*start` bytes stand for the first character of the text as it
  // came in. Sets `*start` to how many bytes of the result do so: 0 if that character was dropped.
  using Rewrite = std::function<std::string(std::string text, size_t* start)>;

  Normalizer() = default;
  explicit Normalizer(Rewrite rewrite) : rewrite_(std::move(rewrite)) {}

  std::string operator()(std::string text) const {
    size_t start = 0;
    return rewrite_(std::move(text), &start);
  }
  std::string operator()(std::string text, size_t* start) const {
    return rewrite_(std::move(text), start);
  }

 private:
  Rewrite rewrite_;
};

// Makes the normalizer that tokenizer.json's `normalizer` describes; null gives the identity.
// Throws InvalidArgument for an unknown type.
Normalizer NormalizerFromJson(const nlohmann::json& json);

}  // namespace lathe
