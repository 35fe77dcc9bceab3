// The embedding program's own header. Lathe has a header of this name, too, and they must not
// clash.
#pragma once

namespace app {

struct Tensor {
  int rows = 0;
};

}  // namespace app
