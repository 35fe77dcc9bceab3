#include "lathe/apps/options/row_flags.h"

#include <filesystem>
#include <system_error>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

void Require(bool ok, const char* message, const char* hint) {
  if (!ok) throw InvalidArgument(message, hint);
}

}  // namespace

void AddRowFlags(FlagTable& flags, DataArguments& o) {
  flags
      .Add("validation_split", &o.validation_split,
           "keep this share of the rows of --train_file, above 0 and below 1, for validation; a "
           "row's texts decide, so it stays where it is when other rows come, but in a class too "
           "small for its share")
      .ValueName("X");
  flags.Add("drop_duplicates", &o.drop_duplicates,
            "leave out training and validation rows that repeat the texts and the label of an "
            "earlier one");
}

void ValidateRowFlags(const FlagTable& flags, const FinetuneArguments& o) {
  // A file of arguments may spell out the default.
  if (!flags.given("validation_split") || o.validation_split == 0) return;
  constexpr char kSplitHint[] = "0.1 keeps about a tenth of the training rows for validation";
  Require(o.validation_split > 0 && o.validation_split < 1,
          "--validation_split must be above 0 and below 1", kSplitHint);
  Require(o.validation_file.empty(), "--validation_split and --validation_file exclude each other",
          "leave one of them out");
  Require(o.do_train, "--validation_split needs --do_train",
          "name the data to evaluate with --validation_file");
}

std::string AbsolutePaths(const std::string& value) {
  std::error_code code;
  if (std::filesystem::exists(value, code)) {
    const auto path = std::filesystem::weakly_canonical(value, code);
    return code ? value : path.string();
  }
  const size_t comma = value.find(',');
  if (comma == std::string::npos) return value;
  return AbsolutePaths(value.substr(0, comma)) + "," + AbsolutePaths(value.substr(comma + 1));
}

}  // namespace lathe
