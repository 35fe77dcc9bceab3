#include "lathe/apps/cli/yaml_file.h"

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {

YAML::Node ReadYamlFile(const std::string& path, const std::string& hint) {
  try {
    return YAML::Load(ReadFile(path));
  } catch (const YAML::Exception& e) {
    throw InvalidArgument(
        path + ":" + std::to_string(e.mark.line + 1) + ": not valid YAML: " + e.msg, hint);
  }
}

}  // namespace lathe
