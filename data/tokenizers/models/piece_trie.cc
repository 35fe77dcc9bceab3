#include "lathe/data/tokenizers/models/piece_trie.h"

#include <algorithm>

namespace lathe {

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, int32_t>> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  });
  pieces.erase(std::unique(pieces.begin(), pieces.end(),
                           [](const auto& a, const auto& b) { return a.first == b.first; }),
               pieces.end());

  // Makes the nodes breadth first. Each stands for the sorted pieces [begin, end), which share
  // their first `depth` bytes.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, pieces.size(), 0}};
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (begin < end && pieces[begin].first.size() == depth) {
      if (depth > 0) nodes_[node].id = pieces[begin].second;
      ++begin;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char label = pieces[begin].first[depth];
      size_t next = begin;
      while (next < end && pieces[next].first[depth] == label) ++next;
      nodes_.push_back({.label = static_cast<uint8_t>(label)});
      ++nodes_[node].num_children;
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
  }
}

uint32_t PieceTrie::Child(uint32_t node, uint8_t label) const {
  const auto begin = nodes_.begin() + nodes_[node].first_child;
  const auto end = begin + nodes_[node].num_children;
  const auto it = std::lower_bound(begin, end, label,
                                   [](const Node& child, uint8_t l) { return child.label < l; });
  return it != end && it->label == label ? static_cast<uint32_t>(it - nodes_.begin()) : kRoot;
}

}  // namespace lathe
