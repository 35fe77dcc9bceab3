// The figures of a report as files, FOLDER/plots/NAME.svg. Users may keep files of their own there.
#pragma once

#include <map>
#include <string>

namespace lathe {

// Writes the figures, SVG by their names, and removes those of an earlier report that are not among
// them. Throws if a file can't be written, or if a name is none that this library knows as its own.
void WriteFigureFiles(const std::string& folder, const std::map<std::string, std::string>& figures);

// Removes the figures of an earlier report, and their folder if it is empty then. A file is one of
// them if it has the name of a figure of Lathe's and begins as those do. One that can't be removed
// stays.
void RemoveFigureFiles(const std::string& folder);

}  // namespace lathe
