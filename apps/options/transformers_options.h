// The options of Transformers' scripts and of TrainingArguments that finetune does not have. A
// command line may hold them all the same, if they change nothing here. Others are refused, with
// what to do instead.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lathe/apps/cli/flags.h"

namespace lathe {

struct TransformersOption {
  std::string_view name;
  FlagTable::Flag::Kind kind;
  // The values that change nothing here, with | between them; "*" if no value does. Texts are
  // compared without regard to case, and numbers as numbers.
  std::string_view harmless;
  // Why these values change nothing, and why others are refused.
  std::string_view reason;
  std::string_view instead;  // what to do in place of another value; empty if all are harmless
};

// Returns the whole table. The names of all versions from 4.20 on are in it.
std::span<const TransformersOption> TransformersOptions();

// Returns true if the value, as the command line has it, changes nothing here.
bool IsHarmless(const TransformersOption& option, const std::string& value);

// Makes the table's options known to `flags`, but for those that it has already. They are not in
// the help, and values that are not harmless throw.
void AddTransformersOptions(FlagTable& flags);

// Returns the table as text for people.
std::string DescribeTransformersOptions();

}  // namespace lathe
