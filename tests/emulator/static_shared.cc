// Finds kernels' static __shared__ variables and fills them with NaN. The emulator's __shared__
// puts a tag into their names. The symbol tables of the program and its libraries have the names
// and addresses.
#include <cuda_runtime.h>
#include <elf.h>
#include <link.h>

#include <cstring>
#include <fstream>
#include <string>

namespace lathe::emulator {
namespace {

using FileHeader = ElfW(Ehdr);
using Section = ElfW(Shdr);
using Symbol = ElfW(Sym);

struct Variable {
  char* address;
  size_t bytes;
};

template <typename T>
std::vector<T> ReadAll(std::ifstream& file, uint64_t offset, uint64_t bytes) {
  std::vector<T> all(bytes / sizeof(T));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(bytes));
  return all;
}

// Adds the variables of one file, which is loaded at `base`. There are none if it was stripped of
// its symbols.
void AddVariables(const std::string& path, uintptr_t base, std::vector<Variable>& variables) {
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
    for (const Symbol& symbol : ReadAll<Symbol>(file, section.sh_offset, section.sh_size)) {
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
      if (std::strstr(&text[symbol.st_name], "lathe_shared") == nullptr) continue;
      variables.push_back({reinterpret_cast<char*>(base + symbol.st_value), symbol.st_size});
    }
  }
}

int AddLoaded(dl_phdr_info* loaded, size_t, void* variables) {
  const std::string path = loaded->dlpi_name;
  AddVariables(path.empty() ? "/proc/self/exe" : path, loaded->dlpi_addr,
               *static_cast<std::vector<Variable>*>(variables));
  return 0;
}

}  // namespace

void SpoilStaticShared() {
  static const std::vector<Variable> variables = [] {
    std::vector<Variable> all;
    dl_iterate_phdr(AddLoaded, &all);
    return all;
  }();
  for (const Variable& variable : variables) {
    std::memset(variable.address, 0xff, variable.bytes);
  }
}

}  // namespace lathe::emulator
