// Reads YAML files, with errors that name file and line.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace lathe {

// Throws what ReadFile throws, and InvalidArgument("path:line: not valid YAML: ...", hint).
YAML::Node ReadYamlFile(const std::string& path, const std::string& hint);

}  // namespace lathe
