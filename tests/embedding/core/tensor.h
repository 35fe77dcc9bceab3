// The embedding program's own header, under a name that Lathe has too: the two must not clash.
#pragma once

namespace app {

struct Tensor {
  int rows = 0;
};

}  // namespace app
