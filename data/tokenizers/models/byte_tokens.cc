#include "lathe/data/tokenizers/models/byte_tokens.h"

#include <string>

namespace lathe {

std::vector<int32_t> ByteTokenIds(const Vocabulary& vocabulary) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token = std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
    ids.push_back(vocabulary.Find(token).value_or(-1));
  }
  return ids;
}

bool AppendByteTokens(const std::vector<int32_t>& byte_ids, std::string_view text,
                      std::vector<int32_t>* ids) {
  const size_t before = ids->size();
  for (const char byte : text) {
    const int32_t id = byte_ids[static_cast<unsigned char>(byte)];
    if (id < 0) {
      ids->resize(before);
      return false;
    }
    ids->push_back(id);
  }
  return true;
}

}  // namespace lathe
