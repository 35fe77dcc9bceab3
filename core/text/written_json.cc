#include "lathe/core/text/written_json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_nesting.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Returns "LINE:COLUMN" of the byte before which `count` bytes stand, both from 1.
std::string PlaceOf(const std::string& text, size_t count) {
  const auto end = text.begin() + static_cast<int64_t>(std::min(text.size(), count));
  const auto line = std::find(std::reverse_iterator(end), text.rend(), '\n').base();
  return std::to_string(1 + std::count(text.begin(), end, '\n')) + ":" +
         std::to_string(1 + (end - line));
}

}  // namespace

Json ParseWrittenJson(const std::string& text, const std::string& where, const std::string& hint) {
  CheckJsonNesting(text, where);
  std::vector<std::set<std::string>> names;  // of the objects that are open, the outermost first
  std::string last_name;  // a file may have one line, so that no number of a line helps
  const auto in_last_name = [&] { return last_name.empty() ? "" : "\"" + last_name + "\": "; };
  const auto check_names = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event != Json::parse_event_t::key) return true;
    const auto name = parsed.get<std::string>();
    if (!names.back().insert(name).second) {
      throw InvalidArgument(
          where + ": " + (depth > 1 ? in_last_name() : "") + "\"" + name + "\" appears twice",
          "leave one of them out");
    }
    if (depth == 1) last_name = name;
    return true;
  };
  try {
    return Json::parse(text, check_names);
  } catch (const Json::parse_error& e) {
    throw InvalidArgument(where + ":" + PlaceOf(text, std::max<size_t>(e.byte, 1) - 1) +
                              ": not valid JSON" +
                              (last_name.empty() ? "" : " behind \"" + last_name + "\""),
                          hint);
  } catch (const Json::out_of_range& e) {
    throw InvalidArgument(where + ": " + in_last_name() + WithoutTag(e.what()), hint);
  }
}

}  // namespace lathe
