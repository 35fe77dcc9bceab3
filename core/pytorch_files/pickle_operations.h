// The operations of a pickle. Python's pickletools.py describes them.
#pragma once

#include <array>
#include <string_view>

namespace lathe {

// Those that files of weights use.
enum PickleOperation : unsigned char {
  kMark = '(',
  kStop = '.',
  kPopValue = '0',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNoneValue = 'N',
  kBinPersId = 'Q',
  kReduceCall = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppendOne = 'a',
  kBuildObject = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTupleFromMark = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// Returns what a pickle holds that has another operation of Python's, or null if there is no such
// operation.
inline const char* OtherValueOf(unsigned char op) {
  struct Operations {
    std::string_view ops;
    const char* holds;
  };
  constexpr std::array<Operations, 11> kOthers = {{
      {"\x8f\x90", "a set"},
      {"\x91", "a frozenset"},
      {"BC\x8e", "bytes"},
      {"\x96", "a bytearray"},
      {"\x8b", "an integer of more than 255 bytes"},
      {"\x8d", "a string of 4 GiB or more"},
      {"io\x81\x92", "an object of a class"},
      {"\x82\x83\x84", "an object of the registry copyreg"},
      {"\x97\x98", "a buffer that lies outside of it"},
      {"1", "a tuple that holds itself"},
      {"2FILPSVdglp", "a value of protocol 0 or 1"},
  }};
  for (const Operations& other : kOthers) {
    if (other.ops.find(static_cast<char>(op)) != std::string_view::npos) return other.holds;
  }
  return nullptr;
}

}  // namespace lathe
