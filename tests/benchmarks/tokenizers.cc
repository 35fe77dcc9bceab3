// Measures how many texts a second a tokenizer encodes: tokenizers DIR FILE [threads]. Each line of
// FILE is a text.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/data/utf8.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenizers DIR FILE [threads]\n");
    return 2;
  }
  try {
    if (argc > 3) omp_set_num_threads(std::atoi(argv[3]));
    const auto tokenizer = lathe::LoadTokenizer(argv[1]);
    std::ifstream in(argv[2]);
    std::vector<std::string> texts;
    for (std::string line; std::getline(in, line);) {
      if (lathe::ValidateUtf8(line) == std::string::npos) texts.push_back(line);
    }
    const int64_t count = static_cast<int64_t>(texts.size());
    for (int repeat = 0; repeat < 6; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      int64_t tokens = 0;
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : tokens)
      for (int64_t i = 0; i < count; ++i) {
        tokens += static_cast<int64_t>(tokenizer->Encode(texts[i], {}, 128).input_ids.size());
      }
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::printf("%.0f texts/s, %.0f tokens/s\n", static_cast<double>(count) / seconds,
                  static_cast<double>(tokens) / seconds);
    }
    return 0;
  } catch (const lathe::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
