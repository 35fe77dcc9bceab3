#include "lathe/tests/check_op.h"

namespace lathe {

Device CheckedDevice() { return {DeviceType::kCUDA, 0}; }

}  // namespace lathe
