// What a fuzzer of this folder defines, and what the fuzzers share.
//
// A fuzzer is one source, formats/NAME_fuzzer.cc. It defines ReadInput for one format:
//
//   void lathe::fuzz::ReadInput(std::string_view input) {
//     ReadLaunchConfig(ScratchFile("config.yaml", input));
//   }
//
// lathe_fuzzer (fuzz.bzl) makes two programs of it. NAME_corpus_test reads the files of
// corpus/NAME and what comes of them by simple changes. NAME_fuzzer is libFuzzer's program, which
// tools/fuzz.sh runs.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace lathe::fuzz {

// Reads `input` as a program reads a file with these bytes. Throws lathe::Error if the reader
// refuses them. Any other exception is a fault of the reader.
void ReadInput(std::string_view input);

// Returns a folder for this process that is removed when it ends.
const std::string& ScratchFolder();
// Writes the file `name` into that folder, in the place of an older one, and returns its path.
std::string ScratchFile(const std::string& name, std::string_view contents);

// Calls all of `readers`, and then throws the first Error that one of them has thrown. So each of
// them sees an input that another one refuses.
void CallAll(std::initializer_list<std::function<void()>> readers);

}  // namespace lathe::fuzz
