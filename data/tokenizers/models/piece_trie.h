// A vocabulary's pieces by their bytes: all that begin at one place of a text are found in one
// walk.
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
  // Pieces and their ids, from 0 on, in any order; of equal ones the largest id counts. The empty
  // piece matches nothing.
  explicit PieceTrie(std::vector<std::pair<std::string_view, int32_t>> pieces);

  // The node one byte further; kRoot if no piece goes on so.
  uint32_t Child(uint32_t node, uint8_t label) const;
  // The piece that ends there; -1: none does.
  int32_t id(uint32_t node) const { return nodes_[node].id; }

 private:
  struct Node {
    uint32_t first_child = 0;
    int32_t id = -1;
    uint16_t num_children = 0;
    uint8_t label = 0;
  };
  std::vector<Node> nodes_ = {Node{}};  // children of a node are neighbours, sorted by label
};

}  // namespace lathe
