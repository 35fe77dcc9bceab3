// PieceTrie: a trie of a vocabulary's pieces over their bytes. One walk finds all pieces that begin
// at one place of a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace lathe {

class PieceTrie {
 public:
  static constexpr uint32_t kRoot = 0;

  PieceTrie() = default;
  // Takes pieces and their ids, which are 0 or more, in any order. If pieces are equal, the largest
  // id counts. The empty piece matches nothing.
  explicit PieceTrie(std::vector<std::pair<std::string_view, int32_t>> pieces);

  // Returns the child of `node` for the byte `label`; kRoot if no piece continues so.
  uint32_t Child(uint32_t node, uint8_t label) const;
  // The id of the piece that ends at `node`; -1 if none does.
  int32_t id(uint32_t node) const { return nodes_[node].id; }

 private:
  struct Node {
    uint32_t first_child = 0;
    int32_t id = -1;
    uint16_t num_children = 0;
    uint8_t label = 0;
  };
  std::vector<Node> nodes_ = {Node{}};  // the children of a node are adjacent, sorted by label
};

}  // namespace lathe
