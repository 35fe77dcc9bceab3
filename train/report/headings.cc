#include "lathe/train/report/headings.h"

#include "lathe/train/report/chart.h"
#include "lathe/train/report/chart_parts.h"

namespace lathe {

std::string Heading(HeadingOf what, const std::string& name) {
  constexpr double kMostWidth = 180;
  const std::string cut = CutToWidth(name, kMostWidth);
  std::string html = std::string("<th scope=\"") + (what == HeadingOf::kColumn ? "col" : "row");
  if (cut != name) html += "\" title=\"" + EscapeHtml(name) + "\" aria-label=\"" + EscapeHtml(name);
  return html + "\">" + EscapeHtml(cut) + "</th>";
}

}  // namespace lathe
