// Reads YAML files, with errors that name file and line.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace lathe {

// Returns the file's only document. Throws what ReadFile throws, and InvalidArgument("path:line:
// not valid YAML: ...", hint). A second document is such an error, too.
YAML::Node ReadYamlFile(const std::string& path, const std::string& hint);

}  // namespace lathe
