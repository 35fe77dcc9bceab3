// Finds kernels' static __shared__ variables and fills them with NaN. The emulator's __shared__
// puts a tag into their names. The symbol tables of the program and its libraries have the names
// and addresses, and say which source a local symbol is from.
#include <cuda_runtime.h>
#include <elf.h>
#include <link.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace lathe::emulator {
namespace {

using FileHeader = ElfW(Ehdr);
using Section = ElfW(Shdr);
using Symbol = ElfW(Sym);

constexpr int kAnySource = 0;

struct Variable {
  char* address;
  size_t bytes;
  int source;  // the number of the only source that sees it, or kAnySource
};

struct Symbols {
  int num_sources = kAnySource;
  std::vector<Variable> variables;
  std::unordered_map<const void*, int> functions;  // the sources of local functions, by address
};

template <typename T>
std::vector<T> ReadAll(std::ifstream& file, uint64_t offset, uint64_t bytes) {
  std::vector<T> all(bytes / sizeof(T));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(bytes));
  return all;
}

// Adds the symbols of one file, which is loaded at `base`. There are none if it was stripped.
void AddSymbols(const std::string& path, uintptr_t base, Symbols& symbols) {
  std::ifstream file(path, std::ios::binary);
  const auto headers = ReadAll<FileHeader>(file, 0, sizeof(FileHeader));
  if (!file || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0) return;
  const auto sections =
      ReadAll<Section>(file, headers[0].e_shoff, uint64_t{headers[0].e_shnum} * sizeof(Section));
  for (const Section& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const Section& names = sections[section.sh_link];
    std::vector<char> text = ReadAll<char>(file, names.sh_offset, names.sh_size);
    text.push_back('\0');
    // The local symbols of a source follow the symbol that names it.
    for (const Symbol& symbol : ReadAll<Symbol>(file, section.sh_offset, section.sh_size)) {
      const int type = ELF64_ST_TYPE(symbol.st_info);
      if (type == STT_FILE) ++symbols.num_sources;
      if (symbol.st_shndx == SHN_UNDEF) continue;
      const bool is_local = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL;
      char* const address = reinterpret_cast<char*>(base + symbol.st_value);
      if (type == STT_FUNC && is_local) symbols.functions[address] = symbols.num_sources;
      if (type != STT_OBJECT) continue;
      if (std::strstr(&text[symbol.st_name], "lathe_shared") == nullptr) continue;
      symbols.variables.push_back(
          {address, symbol.st_size, is_local ? symbols.num_sources : kAnySource});
    }
  }
}

int AddLoaded(dl_phdr_info* loaded, size_t, void* symbols) {
  const std::string path = loaded->dlpi_name;
  AddSymbols(path.empty() ? "/proc/self/exe" : path, loaded->dlpi_addr,
             *static_cast<Symbols*>(symbols));
  return 0;
}

// Returns the variables that a kernel can use: those that its source sees.
std::vector<Variable> VariablesFor(const void* kernel) {
  static const Symbols symbols = [] {
    Symbols all;
    dl_iterate_phdr(AddLoaded, &all);
    return all;
  }();
  const auto found = symbols.functions.find(kernel);
  if (found == symbols.functions.end()) return symbols.variables;
  std::vector<Variable> seen;
  for (const Variable& variable : symbols.variables) {
    if (variable.source == kAnySource || variable.source == found->second) seen.push_back(variable);
  }
  return seen;
}

}  // namespace

void SpoilStaticShared(const void* kernel) {
  static std::map<const void*, std::vector<Variable>> of_kernels;
  const auto [of_kernel, is_new] = of_kernels.try_emplace(kernel);
  if (is_new) of_kernel->second = VariablesFor(kernel);
  for (const Variable& variable : of_kernel->second)
    std::memset(variable.address, 0xff, variable.bytes);
}

}  // namespace lathe::emulator
