// Durable files: a file or a folder is there whole or not at all.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lathe {

// The file's bytes. Throws NotFound / PermissionDenied `path: No such file or directory`.
std::string ReadFile(const std::string& path);

// Calls `write` with a temporary path in the same folder, syncs what it wrote and renames it to `path`. If
// `write` throws or the disk is full, the temporary is removed and `path` is as it was. Throws `path: No space
// left on device` etc.
void WriteFileAtomically(const std::string& path, const std::function<void(const std::string&)>& write);
void WriteFileAtomically(const std::string& path, std::string_view contents);

}  // namespace lathe
