// JSON that people write, such as a file of options. Its errors say where a mistake stands. A key
// that occurs twice in an object is one, though the JSON library would take the last of the two.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lathe {

// Returns the value of the text. `where` begins the messages of errors: it is the file's path, or
// the name of an option. Throws InvalidArgument with `hint` for other texts, such as
// `options.json:2:9: not valid JSON behind "seed"`. The numbers are line and column, and the key is
// the last one of the outermost object. Throws, too, for a key that an object has twice.
nlohmann::json ParseWrittenJson(const std::string& text, const std::string& where,
                                const std::string& hint);

}  // namespace lathe
