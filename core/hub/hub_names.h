// Names of models, revisions and files on a Hub: which are allowed, and how addresses have them.
#pragma once

#include <string>

namespace lathe {

// Returns true for what can be the name of a model on a Hub: "owner/name", or "name" for some old
// models. Each part has letters, digits, "-", "_" and "."; "--" and ".." are not allowed.
bool IsModelName(const std::string& text);

// Returns true for what is here and goes before the Hub: a folder, or a file such as a config.json.
bool IsLocalPath(const std::string& name_or_path);

// Returns true for a commit: 40 hexadecimal digits in lower case.
bool IsCommit(const std::string& text);

// Percent-encodes all but letters, digits, "-", "_", "." and "~"; and "/" if `keep_slashes`.
std::string PercentEncoded(const std::string& text, bool keep_slashes);

}  // namespace lathe
