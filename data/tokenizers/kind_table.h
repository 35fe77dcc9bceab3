// Tables of kinds: each part of a tokenizer.json has one table, with a row for each type that Lathe
// supports. Messages that list what is supported are made from the rows.
//
// A new kind costs a function that makes it from its JSON, and a row in its part's table.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <source_location>
#include <string>
#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {

// A detail of errors (Error::detail) whose message begins with the part of tokenizer.json that they
// are about.
struct AboutPart {
  std::string part;  // its key, such as "pre_tokenizer"
};

// Returns the error InvalidArgument `part problem`, which carries an AboutPart.
inline Error PartError(const std::string& part, const std::string& problem, std::string hint,
                       std::source_location location = std::source_location::current()) {
  return InvalidArgument(part + " " + problem, std::move(hint), location)
      .WithDetail(AboutPart{part});
}

// A row: the value of the key "type", and the function that makes the part from its JSON object.
template <typename Part>
struct Kind {
  const char* type;
  Part (*make)(const nlohmann::json& json);
};

// Returns "A, B and C". `name` is a function of a row or a pointer to its member.
template <typename Rows, typename Name>
std::string JoinNames(const Rows& rows, Name name, const std::string& last_separator = " and ") {
  std::string joined;
  size_t left = std::size(rows);
  for (const auto& row : rows) {
    --left;
    joined += std::invoke(name, row);
    joined += left == 0 ? "" : left == 1 ? last_separator : ", ";
  }
  return joined;
}

// Makes what `json` describes by the row for `type`. Throws PartError `part 'type' is not
// supported` if there is none, with the table's types as a hint.
template <typename Rows>
auto MakePart(const std::string& part, const Rows& rows, const std::string& type,
              const nlohmann::json& json) {
  for (const auto& row : rows) {
    if (type == row.type) {
      return row.make(json);
    }
  }
  throw PartError(part, "'" + type + "' is not supported",
                  "Lathe supports " + JoinNames(rows, [](const auto& row) { return row.type; }));
}

}  // namespace lathe
