// The folder that Hugging Face's libraries keep their files in.
#pragma once

#include <string>

namespace lathe {

// Returns $HF_HOME. If it is not set, returns $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface.
std::string HuggingFaceHome();

}  // namespace lathe
