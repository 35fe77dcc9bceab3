#include "lathe/data/utf8.h"

#include <cstdint>
#include <cstring>

namespace lathe {
namespace {

// One step over possibly broken UTF-8: a whole sequence, or an ill-formed part to be replaced.
struct Step {
  size_t size;
  bool valid;
};

bool InRange(unsigned char byte, unsigned char low, unsigned char high) {
  return low <= byte && byte <= high;
}

Step Next(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(pos);
  if (lead < 0x80) {
    return {1, true};
  }
  if (!InRange(lead, 0xC2, 0xF4)) {
    return {1, false};
  }
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte's range depends on the lead: it rules out overlong forms and surrogates.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < size; ++i) {
    if (pos + i >= text.size() ||
        !InRange(byte(pos + i), i == 1 ? low : 0x80, i == 1 ? high : 0xBF)) {
      return {i, false};
    }
  }
  return {size, true};
}

}  // namespace

bool IsAscii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) {
      return false;
    }
  }
  for (; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) >= 0x80) {
      return false;
    }
  }
  return true;
}

size_t ValidateUtf8(std::string_view text) {
  if (IsAscii(text)) {
    return std::string_view::npos;
  }
  for (size_t pos = 0; pos < text.size();) {
    const Step step = Next(text, pos);
    if (!step.valid) {
      return pos;
    }
    pos += step.size;
  }
  return std::string_view::npos;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Step step = Next(text, pos);
    out += step.valid ? text.substr(pos, step.size) : std::string_view("\xEF\xBF\xBD");
    pos += step.size;
  }
  return out;
}

char32_t DecodeUtf8(std::string_view text, size_t* pos) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[*pos + i]));
  };
  const char32_t lead = byte(0);
  char32_t code_point;
  switch (Utf8SequenceLength(text[*pos])) {
    case 1:
      *pos += 1;
      return lead;
    case 2:
      code_point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
      *pos += 2;
      return code_point;
    case 3:
      code_point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
      *pos += 3;
      return code_point;
    default:
      code_point =
          (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
      *pos += 4;
      return code_point;
  }
}

char32_t DecodeUtf8Before(std::string_view text, size_t end) {
  size_t pos = end - 1;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) {
    --pos;
  }
  return DecodeUtf8(text, &pos);
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto add = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

}  // namespace lathe
