// Checks what the compiler makes of the kernels' inner loops, at each instruction set level.
// Vectors wider than a register, or more vectors than registers, are kept on the stack. A loop that
// stores and loads them again is up to ten times as slow. Nothing else shows this: results are
// right, and speed can't be tested on shared machines. So the test reads the disassembly.
//
// It has limits. It looks at loops that contain no other loop, and in these at operands at fixed
// distances from the stack's or the frame's pointer. It misses what an outer loop stores, and what
// another register addresses. Outside products it forgives four stores, and more in long loops; see
// IsBad.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lathe {
namespace {

struct Instruction {
  uint64_t address;
  std::string text;
};
struct Function {
  std::string name;  // several functions may have one name: lambdas, instances in several files
  std::vector<Instruction> instructions;
};
using Functions = std::vector<Function>;

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Parses the output of `objdump -d`. Its operands are in AT&T's order: the last one is written.
Functions ParseDisassembly(std::istream& in) {
  Functions functions;
  std::vector<Instruction>* current = nullptr;
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with(">:")) {
      const size_t name = line.find('<') + 1;
      functions.push_back({line.substr(name, line.size() - name - 2), {}});
      current = &functions.back().instructions;
      continue;
    }
    const size_t colon = line.find(":\t");
    if (current == nullptr || colon == std::string::npos) continue;
    char* end = nullptr;
    const uint64_t address = std::strtoull(line.c_str(), &end, 16);
    if (end != line.c_str() + colon) continue;
    current->push_back({address, line.substr(colon + 2)});
  }
  return functions;
}

bool UsesVectors(const std::string& text) {
  return Has(text, "%xmm") || Has(text, "%ymm") || Has(text, "%zmm");
}

// Returns true if an operand is a fixed place on the stack. Arrays there, which are indexed, and
// memory behind other registers don't count.
bool IsOnStack(const std::string& operands, bool has_frame_pointer) {
  return Has(operands, "(%rsp)") || (has_frame_pointer && Has(operands, "(%rbp)"));
}

// Returns true if the instruction stores a vector register at such a place.
bool StoresOnStack(const std::string& text, bool has_frame_pointer) {
  const size_t comma = text.rfind(',');
  if (comma == std::string::npos || !UsesVectors(text.substr(0, comma))) return false;
  return IsOnStack(text.substr(comma + 1), has_frame_pointer);
}

// Returns true if the instruction reads an operand for a vector register from such a place. It may
// load or broadcast it, or compute with it.
bool ReadsFromStack(const std::string& text, bool has_frame_pointer) {
  return UsesVectors(text) && IsOnStack(text, has_frame_pointer) &&
         !StoresOnStack(text, has_frame_pointer);
}

// Returns true if the instruction multiplies vectors: a product's fused multiply-add, or its
// multiplication where there is none.
bool Multiplies(const std::string& text) {
  return UsesVectors(text) && (Has(text, "fmadd") || text.starts_with("mulp") ||
                               text.starts_with("vmulp") || text.starts_with("vdpbf16ps"));
}

// Returns true if the instruction multiplies vectors as SSE does: it overwrites one of its
// operands.
bool MultipliesInPlace(const std::string& text) {
  return UsesVectors(text) && text.starts_with("mulp");
}

struct Loop {
  int64_t instructions = 0, vectors = 0, multiplications = 0, stack_stores = 0, stack_reads = 0;
  bool in_place = false;  // it has multiplications of SSE
};

// What may run just before and just after each instruction of a function, as positions of others.
// Indirect jumps are left out.
struct Order {
  std::vector<std::vector<size_t>> before, after;
  std::vector<std::pair<size_t, size_t>> jumps_back;  // {target, jump}
};

Order OrderOf(const std::vector<Instruction>& function) {
  Order order{.before = std::vector<std::vector<size_t>>(function.size()),
              .after = std::vector<std::vector<size_t>>(function.size()),
              .jumps_back = {}};
  const auto add = [&](size_t from, size_t to) {
    order.after[from].push_back(to);
    order.before[to].push_back(from);
  };
  std::map<uint64_t, size_t> positions;
  for (size_t at = 0; at < function.size(); ++at) positions[function[at].address] = at;
  for (size_t at = 0; at < function.size(); ++at) {
    const std::string& text = function[at].text;
    if (at + 1 < function.size() && !text.starts_with("jmp") && !text.starts_with("ret"))
      add(at, at + 1);
    const size_t operand = text.find_first_not_of(' ', text.find(' '));
    if (text[0] != 'j' || operand == std::string::npos || std::isxdigit(text[operand]) == 0)
      continue;
    const auto target = positions.find(std::strtoull(text.c_str() + operand, nullptr, 16));
    if (target == positions.end()) continue;
    add(at, target->second);
    if (target->second <= at) order.jumps_back.push_back({target->second, at});
  }
  return order;
}

// Returns the positions that a walk from `start` along `next` reaches between begin and end.
std::set<size_t> Reached(const std::vector<std::vector<size_t>>& next, size_t start, size_t begin,
                         size_t end) {
  std::set<size_t> reached = {start};
  for (std::vector<size_t> todo = {start}; !todo.empty();) {
    const size_t from = todo.back();
    todo.pop_back();
    for (const size_t at : next[from]) {
      if (begin <= at && at <= end && reached.insert(at).second) todo.push_back(at);
    }
  }
  return reached;
}

// Returns the positions of the loop from a jump's target to the jump back. There is no loop, and no
// position, if the target doesn't lead to the jump. The compiler also puts rare code behind the
// code that follows it.
std::set<size_t> LoopBody(const Order& order, size_t target, size_t jump) {
  const std::set<size_t> after = Reached(order.after, target, target, jump);
  if (!after.contains(jump)) return {};
  const std::set<size_t> before = Reached(order.before, jump, target, jump);
  std::set<size_t> body;
  std::set_intersection(after.begin(), after.end(), before.begin(), before.end(),
                        std::inserter(body, body.end()));
  return body;
}

// Returns the loops that contain no other loop.
std::vector<Loop> InnerLoops(const std::vector<Instruction>& function) {
  const bool has_frame_pointer = std::any_of(
      function.begin(), function.end(),
      [](const Instruction& i) { return i.text.starts_with("mov ") && Has(i.text, "%rsp,%rbp"); });
  const Order order = OrderOf(function);
  std::vector<std::set<size_t>> bodies;
  for (const auto& [target, jump] : order.jumps_back) {
    std::set<size_t> body = LoopBody(order, target, jump);
    if (!body.empty()) bodies.push_back(std::move(body));
  }
  std::vector<Loop> inner;
  for (const std::set<size_t>& body : bodies) {
    const bool has_inner = std::any_of(bodies.begin(), bodies.end(), [&](const auto& other) {
      return other.size() < body.size() &&
             std::includes(body.begin(), body.end(), other.begin(), other.end());
    });
    if (has_inner) continue;
    Loop loop;
    for (const size_t at : body) {
      const std::string& text = function[at].text;
      ++loop.instructions;
      loop.vectors += UsesVectors(text) ? 1 : 0;
      loop.multiplications += Multiplies(text) ? 1 : 0;
      loop.stack_stores += StoresOnStack(text, has_frame_pointer) ? 1 : 0;
      loop.stack_reads += ReadsFromStack(text, has_frame_pointer) ? 1 : 0;
      loop.in_place = loop.in_place || MultipliesInPlace(text);
    }
    inner.push_back(loop);
  }
  return inner;
}

// A few values without a register cost little beside many others. So an eighth of a loop's vector
// instructions, and in any case four, may store on the stack. Three eighths may read from there.
// Such a value was stored before the loop, as a polynomial's constant is. It is an operand of the
// instruction that uses it. It takes no instruction of its own and waits for no store, and
// processors load two such operands a cycle. A third of GELU's gradient with AVX2 are such.
//
// The loop of a product has no such values, only sums. Each that has no register is stored and read
// again each time. So none may be. Such a loop has many multiplications. With fused multiply-adds
// they are half of its vector instructions. With SSE they are a quarter or more. Each factor is
// copied before it is overwritten, and sums are added up by an instruction of their own.
bool IsBad(const Loop& loop) {
  const int64_t vectors_each = loop.in_place ? 4 : 3;
  const bool is_product =
      loop.multiplications >= 8 && loop.multiplications * vectors_each >= loop.vectors;
  return (is_product && loop.stack_stores > 0) ||
         (loop.stack_stores > 4 && loop.stack_stores * 8 > loop.vectors) ||
         (loop.stack_reads > 4 && loop.stack_reads * 8 > loop.vectors * 3);
}

// Returns true for kernels of float64, which serve gradient checks only, and for what makes the
// tables of activation functions, once.
bool MayBeBad(const std::string& function) {
  return Has(function, "<double>(") || Has(function, "<double, double>(") ||
         Has(function, "(double*,") || Has(function, "::ForAllValues<");
}

Functions Disassembled(const std::string& file) {
  // Bazel chose the name; it contains no quotes.
  FILE* pipe = popen(("objdump -d --no-show-raw-insn -C '" + file + "'").c_str(), "r");
  if (pipe == nullptr) return {};
  std::stringstream text;
  std::vector<char> part(1 << 16);
  for (size_t n; (n = fread(part.data(), 1, part.size(), pipe)) > 0;)
    text.write(part.data(), static_cast<std::streamsize>(n));
  return pclose(pipe) == 0 ? ParseDisassembly(text) : Functions{};
}

class InnerLoopsTest : public testing::TestWithParam<int> {};

TEST_P(InnerLoopsTest, KeepVectorsInRegisters) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "checks of accesses change the loops";
#endif
  const char* files = std::getenv(("KERNELS_V" + std::to_string(GetParam())).c_str());
  ASSERT_NE(files, nullptr);
  std::istringstream names(files);
  int64_t loops = 0, with_vectors = 0;
  for (std::string file; names >> file;) {
    if (file.ends_with(".so")) continue;
    for (const auto& [name, instructions] : Disassembled(file)) {
      for (const Loop& loop : InnerLoops(instructions)) {
        ++loops;
        with_vectors += loop.vectors > 0 ? 1 : 0;
        EXPECT_TRUE(!IsBad(loop) || MayBeBad(name))
            << name << ": an inner loop of " << loop.instructions << " instructions, "
            << loop.vectors << " with vector registers, stores on the stack with "
            << loop.stack_stores << " of these and reads from it with " << loop.stack_reads;
      }
    }
  }
  // Makes sure that the kernels were found.
  EXPECT_GT(loops, 200);
  EXPECT_GT(with_vectors, 100);
}

INSTANTIATE_TEST_SUITE_P(Levels, InnerLoopsTest, testing::Values(2, 3, 4, 5));

TEST(InnerLoops, MayBeBadInFloat64AndTables) {
  EXPECT_TRUE(MayBeBad("void lathe::ForRows<lathe::Backward<double>(double*)>(long)"));
  EXPECT_TRUE(MayBeBad("void lathe::Backward<double, double>(double*, long) [clone ._omp_fn.0]"));
  EXPECT_FALSE(MayBeBad("void lathe::Backward<float, float>(float*, lathe::LayerNormArgs const&)"));
  EXPECT_TRUE(MayBeBad("lathe::FillSome(double*, long, unsigned int)"));
  EXPECT_TRUE(MayBeBad("void lathe::ForAllValues<lathe::Table()::{lambda()#1}>(lathe::Table)"));
  EXPECT_FALSE(MayBeBad("lathe::Scale(float*, double)"));
}

// Hand-written disassembly: an outer loop around a bad loop and a good one, and rare code that
// jumps back to the code that follows it.
TEST(InnerLoops, AreFoundAndCounted) {
  std::istringstream text(
      "0000000000000000 <Bad(float*)>:\n"
      "   0:\tpush   %rbp\n"
      "   1:\tmov    %rsp,%rbp\n"
      "   4:\tvmovaps %ymm0,-0x40(%rbp)\n"
      "   8:\tvmulps -0x40(%rbp),%ymm1,%ymm2\n"
      "   c:\tvmovaps %ymm2,0x20(%rsp)\n"
      "  10:\tvmovaps %ymm2,-0x60(%rbp)\n"
      "  14:\tvmovups %ymm2,0x40(%rsp,%rax,4)\n"
      "  18:\tvmovups %ymm2,(%rdi)\n"
      "  1c:\tmov    %rax,0x8(%rsp)\n"
      "  20:\tjne    8 <Bad(float*)+0x8>\n"
      "  22:\tvaddps %ymm2,%ymm3,%ymm3\n"
      "  26:\tjne    22 <Bad(float*)+0x22>\n"
      "  28:\tjmp    4 <Bad(float*)+0x4>\n"
      "  2a:\tjmp    40 <Bad(float*)+0x40>\n"
      "  2c:\tjmp    *%rax\n"
      "\n"
      "0000000000000000 <NoFrame(float*)>:\n"
      "   0:\tvmovaps %ymm0,(%rbp)\n"
      "   4:\tjne    0 <NoFrame(float*)>\n"
      "\n"
      "0000000000000000 <Rare(float*)>:\n"
      "   0:\tje     a <Rare(float*)+0xa>\n"
      "   2:\tvmovaps %ymm0,0x20(%rsp)\n"
      "   8:\tret\n"
      "   a:\tvxorps %ymm0,%ymm0,%ymm0\n"
      "   e:\tjmp    2 <Rare(float*)+0x2>\n"
      "\n"
      "0000000000000000 <Bad(float*)>:\n"
      "   0:\tret\n");
  const Functions functions = ParseDisassembly(text);
  ASSERT_EQ(functions.size(), 4u);
  EXPECT_EQ(functions[0].name, "Bad(float*)");
  EXPECT_EQ(functions[3].name, "Bad(float*)");
  const std::vector<Loop> loops = InnerLoops(functions[0].instructions);
  ASSERT_EQ(loops.size(), 2u);
  EXPECT_EQ(loops[0].instructions, 7);
  EXPECT_EQ(loops[0].vectors, 5);
  EXPECT_EQ(loops[0].multiplications, 1);
  EXPECT_EQ(loops[0].stack_stores, 2);
  EXPECT_EQ(loops[0].stack_reads, 1);
  EXPECT_EQ(loops[1].stack_stores + loops[1].stack_reads, 0);
  const Loop no_frame = InnerLoops(functions[1].instructions)[0];
  EXPECT_EQ(no_frame.stack_stores + no_frame.stack_reads, 0);
  EXPECT_TRUE(InnerLoops(functions[2].instructions).empty());
}

TEST(InnerLoops, WithManySpillsAreBad) {
  EXPECT_TRUE(IsBad({.instructions = 26, .vectors = 18, .stack_stores = 6}));
  EXPECT_FALSE(IsBad({.instructions = 200, .vectors = 196, .stack_stores = 20}));
  EXPECT_FALSE(IsBad({.instructions = 9, .vectors = 3, .stack_stores = 3}));
  EXPECT_TRUE(IsBad({.instructions = 26, .vectors = 18, .stack_reads = 7}));
  EXPECT_FALSE(IsBad({.instructions = 94, .vectors = 82, .stack_reads = 30}));
  EXPECT_FALSE(IsBad({.instructions = 9, .vectors = 4, .stack_reads = 4}));
  // A product of 8 x 2 registers with AVX2, where 16 sums don't fit beside the operands.
  EXPECT_TRUE(IsBad({.instructions = 33,
                     .vectors = 29,
                     .multiplications = 16,
                     .stack_stores = 3,
                     .stack_reads = 3}));
  EXPECT_FALSE(IsBad({.instructions = 26, .vectors = 22, .multiplications = 12}));
  // A product with SSE, and a loop with AVX2 that has too few multiplications for a product.
  EXPECT_TRUE(IsBad({.vectors = 44, .multiplications = 12, .stack_stores = 1, .in_place = true}));
  EXPECT_FALSE(IsBad({.vectors = 43, .multiplications = 12, .in_place = true}));
  EXPECT_FALSE(IsBad({.vectors = 44, .multiplications = 12, .stack_stores = 1}));
}

TEST(InnerLoops, OfSseAreKnown) {
  std::istringstream text(
      "0000000000000000 <Sse(float*)>:\n"
      "   0:\tmovaps %xmm0,%xmm2\n"
      "   3:\tmulps  %xmm1,%xmm2\n"
      "   6:\taddps  %xmm2,%xmm3\n"
      "   9:\tjne    0 <Sse(float*)>\n"
      "\n"
      "0000000000000000 <Avx(float*)>:\n"
      "   0:\tvmulps %xmm0,%xmm1,%xmm2\n"
      "   4:\tjne    0 <Avx(float*)>\n");
  const Functions functions = ParseDisassembly(text);
  ASSERT_EQ(functions.size(), 2u);
  const Loop sse = InnerLoops(functions[0].instructions)[0];
  EXPECT_EQ(sse.multiplications, 1);
  EXPECT_TRUE(sse.in_place);
  const Loop avx = InnerLoops(functions[1].instructions)[0];
  EXPECT_EQ(avx.multiplications, 1);
  EXPECT_FALSE(avx.in_place);
}

}  // namespace
}  // namespace lathe
