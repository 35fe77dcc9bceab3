// Values of Transformers' options that Lathe has no counterpart for: why each is refused, and what
// to pass instead.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lathe {

struct RefusedValue {
  std::string_view option;
  std::string_view values;   // with | between them
  std::string_view reason;   // why Lathe lacks it, or what it would change
  std::string_view instead;  // what to do
};

// Returns the whole table: all optimizers, schedules and trackers of Transformers from 4.20 on that
// Lathe lacks.
std::span<const RefusedValue> RefusedValues();

// Throws the error of a value that the table has; returns if it hasn't. `known` lists what the
// option takes, for the hint.
void CheckNotRefused(std::string_view option, const std::string& value, const std::string& known);

}  // namespace lathe
