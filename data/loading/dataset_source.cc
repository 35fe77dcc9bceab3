#include "lathe/data/loading/dataset_source.h"

#include <absl/status/status.h>

#include <new>
#include <utility>

namespace lathe {
namespace {

constexpr size_t kMostNamed = 8;  // samples in a message

// Throws the present exception with change(message) as its message.
template <typename Change>
[[noreturn]] void Rethrow(const Change& change) {
  try {
    throw;
  } catch (const Error& e) {
    throw Error(e.code(), change(e.message()), e.hint(), e.location());
  } catch (const std::bad_alloc&) {
    throw Error(absl::StatusCode::kResourceExhausted, change("there is not enough memory"));
  } catch (const std::exception& e) {
    throw Error(absl::StatusCode::kUnknown, change(e.what()));
  } catch (...) {
    throw Error(absl::StatusCode::kUnknown, change("an exception of an unknown type"));
  }
}

}  // namespace

void RethrowAbout(const std::string& what) {
  Rethrow([&](const std::string& message) { return what + ": " + WithoutTag(message); });
}

void RethrowAboutBatch(const BatchInfo& info) {
  Rethrow([&](const std::string& message) {
    const size_t n = info.indices.size();
    std::string text = message.starts_with('[') ? message : "[collate] " + message;
    text += n == 1 ? "; the batch has sample " : "; the batch has samples ";
    for (size_t i = 0; i < std::min(n, kMostNamed); ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(info.indices[i]);
    return n <= kMostNamed ? text : text + " and " + std::to_string(n - kMostNamed) + " more";
  });
}

}  // namespace lathe
