// Writes the binary files of the corpus, by Lathe's own writers where it has one:
//
//   bazel run //tests/fuzz:make_corpus -- $PWD/tests/fuzz/corpus
//
// The other files of the corpus are texts, which an editor changes.
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/fletcher32.h"
#include "lathe/core/checkpoint/state_file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/keras_files/hdf5_arrays.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/core/tensor.h"
#include "lathe/data/column_files/hdf5_chunk.h"
#include "lathe/data/table_files/compress_testing.h"
#include "lathe/tests/fuzz/small_dataset.h"
#include "lathe/tests/fuzz/states.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Returns the file `name` of the format, whose folder is made if it is missing.
std::string FileOf(const std::string& corpus, const std::string& format, const std::string& name) {
  fs::create_directories(corpus + "/" + format);
  return corpus + "/" + format + "/" + name;
}

Tensor Ramp(const Shape& shape, DType dtype) {
  Tensor ramp = Tensor::Empty(shape, DType::kF32);
  for (int64_t i = 0; i < ramp.numel(); ++i) ramp.data<float>()[i] = static_cast<float>(i);
  if (dtype == DType::kF32) return ramp;
  Tensor converted = Tensor::Empty(shape, dtype);
  if (dtype == DType::kI64) {
    for (int64_t i = 0; i < ramp.numel(); ++i) converted.data<int64_t>()[i] = i;
  } else {
    std::memset(converted.raw_data(), 0, static_cast<size_t>(converted.bytes()));
  }
  return converted;
}

void WriteSafetensorsFiles(const std::string& corpus) {
  WriteSafetensors(FileOf(corpus, "safetensors", "ok_all_dtypes"),
                   {{"weight", Ramp({2, 3}, DType::kF32)},
                    {"ids", Ramp({3}, DType::kI64)},
                    {"half", Ramp({2}, DType::kF16)},
                    {"brain", Ramp({1, 2}, DType::kBF16)},
                    {"scalar", Ramp({}, DType::kF32)},
                    {"empty", Ramp({0, 4}, DType::kF32)}});
  WriteSafetensors(FileOf(corpus, "safetensors", "ok_no_tensors"), {});
}

void WriteCompressedFiles(const std::string& corpus) {
  const std::string text = "sentence,label\ngood film,1\nbad film,0\n";
  const auto write = [&](const std::string& format, std::string whole) {
    WriteFileAtomically(FileOf(corpus, format, "ok_one"), whole);
    WriteFileAtomically(FileOf(corpus, format, "ok_two"), whole + whole);
    WriteFileAtomically(FileOf(corpus, format, "bad_cut"), whole.substr(0, whole.size() - 3));
    WriteFileAtomically(FileOf(corpus, format, "bad_plain"), text);
    whole.back() ^= 1;  // of the size, or of the checksum
    WriteFileAtomically(FileOf(corpus, format, "bad_end"), whole);
  };
  write("gzip", Gzip(text));
  write("zstd", Zstd(text));
}

void WriteStateFiles(const std::string& corpus) {
  WriteStateFile(FileOf(corpus, "state_file", "ok_state"), fuzz::SomeState());
  WriteStateFile(FileOf(corpus, "checkpoint", "ok_as_saved"), fuzz::SomeState());
  WriteStateFile(FileOf(corpus, "checkpoint", "bad_another_state"), StateDict());
}

// A directory of a tokenized dataset's file: a text, but with the digests of its chunks.
void WriteColumnFileDirectories(const std::string& corpus) {
  const auto write = [&](const char* name, const nlohmann::json& directory) {
    WriteFileAtomically(FileOf(corpus, "column_file", name), DumpJson(directory));
  };
  const nlohmann::json sound = fuzz::MakeSmallDataset().directory;
  write("ok_three_rows", sound);
  nlohmann::json changed = sound;
  changed["about"]["kind"] = 7;
  write("bad_kind", changed);
  changed = sound;
  changed["about"].erase("extent");
  write("bad_no_extent", changed);
  changed = sound;
  changed["columns"][0]["size"] = int64_t{1} << 62;
  write("bad_size_overflows", changed);
  changed = sound;
  changed["columns"][2]["addresses"] = {-8};
  write("bad_address", changed);
  changed = sound;
  changed["columns"][1]["addresses"] = {1.7e34};
  write("bad_number", changed);
}

// --- HDF5 files of other programs ---

// The answers of a confined child, about the file of hdf5_answers.h.
void WriteHdf5Answers(const std::string& corpus) {
  const auto write = [&](const char* name, const std::vector<Hdf5Array>& arrays) {
    WriteFileAtomically(FileOf(corpus, "hdf5_answer", name), "+" + Serialize(arrays));
  };
  const Hdf5Array plain = {.name = "weights:0", .dtype = "F32", .dims = {4, 2}, .offset = 64};
  const Hdf5Array copied = {.name = "model/dense/kernel:0",
                            .has_model = true,
                            .dtype = "BF16",
                            .dims = {4, 3},
                            .is_copied = true,
                            .offset = 7};
  const Hdf5Array chunked = {.name = "numbers",
                             .dtype = "I32",
                             .dims = {4, 3},
                             .chunk_dims = {2, 2},
                             .filters = {static_cast<uint64_t>(Hdf5Filter::kShuffle)},
                             .chunks = {{.offset = 0, .size = 16},
                                        {.offset = 16, .size = 16},
                                        {.offset = 1000, .size = 16, .skipped = 1},
                                        {.offset = 4080, .size = 16}}};
  write("ok_plain", {plain});
  write("ok_all", {plain, copied, chunked});
  Hdf5Array changed = plain;
  changed.offset = 4096 - 31;
  write("bad_offset", {changed});
  changed = plain;
  changed.dims = {uint64_t{1} << 62, uint64_t{1} << 62};
  write("bad_dims", {changed});
  changed = plain;
  changed.dims = {3, 2};
  write("bad_rows", {changed, chunked});
  changed = chunked;
  changed.chunks.pop_back();
  write("bad_chunks", {changed});
  changed = chunked;
  changed.chunks[1].size = UINT64_MAX;
  write("bad_chunk_size", {changed});
  changed = chunked;
  changed.chunk_dims[1] = 0;
  write("bad_chunk_dims", {changed});
  changed = chunked;
  changed.filters.assign(100, 2);
  write("bad_filters", {changed});
  write("bad_nothing", {});
  WriteFileAtomically(FileOf(corpus, "hdf5_answer", "bad_refusal"), "?big-endian\nhint: write it");
  WriteFileAtomically(FileOf(corpus, "hdf5_answer", "bad_damage"), "-damaged");
  WriteFileAtomically(FileOf(corpus, "hdf5_answer", "bad_no_reason"), "-");
}

// Chunks, behind what their file says about them (formats/hdf5_chunk_fuzzer.cc).
void WriteHdf5Chunks(const std::string& corpus) {
  constexpr uint8_t kFourBytes = 2;  // as a binary logarithm
  const auto write = [&](const char* name, const std::vector<Hdf5Filter>& filters,
                         uint32_t elements, const std::string& stored) {
    std::string input(1, static_cast<char>(filters.size()));
    for (const Hdf5Filter filter : filters) input += static_cast<char>(filter);
    input += static_cast<char>(kFourBytes);
    for (int shift = 0; shift < 32; shift += 8) input += static_cast<char>(elements >> shift);
    WriteFileAtomically(FileOf(corpus, "hdf5_chunk", name), input + stored);
  };
  const std::string plain = "0123456789abcdef0123456789abcdef";  // eight elements
  std::string packed(compressBound(plain.size()), '\0');
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size,
           reinterpret_cast<const Bytef*>(plain.data()), plain.size());
  packed.resize(size);
  const uint32_t checksum = Fletcher32(packed.data(), packed.size());
  std::string checked = packed + std::string(sizeof checksum, '\0');
  std::memcpy(checked.data() + packed.size(), &checksum, sizeof checksum);
  using F = Hdf5Filter;
  write("ok_plain", {}, 8, plain);
  write("ok_shuffled", {F::kShuffle}, 8, plain);
  write("ok_packed", {F::kDeflate}, 8, packed);
  write("ok_all", {F::kShuffle, F::kDeflate, F::kFletcher32}, 8, checked);
  write("bad_size", {F::kShuffle}, 7, plain);
  write("bad_packed_size", {F::kDeflate}, UINT32_MAX, packed);
  write("bad_cut", {F::kDeflate}, 8, packed.substr(0, packed.size() - 3));
  write("bad_filter", {static_cast<F>(4)}, 8, plain);
  checked.back() ^= 1;
  write("bad_checksum", {F::kShuffle, F::kDeflate, F::kFletcher32}, 8, checked);
}

// --- SentencePiece: a protocol buffer ---

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string IntegerField(int number, uint64_t value) {
  return Varint(static_cast<uint64_t>(number) << 3) + Varint(value);
}
std::string BytesField(int number, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(number) << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string FloatField(int number, float value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return Varint(static_cast<uint64_t>(number) << 3 | 5) + bytes;
}

// Returns a character map that makes "a" of "A", and nothing else. It has the size of a double
// array, the array, and the texts that its leaves point to. See Charsmap for the array's fields.
std::string Charsmap() {
  constexpr uint32_t kRootOffset = 1, kLeafOffset = 0x80, kHasLeaf = 1 << 8, kIsLeaf = 1u << 31;
  std::vector<uint32_t> units(256, kIsLeaf);  // what no node leads to has no byte's label
  const uint32_t node = kRootOffset ^ 'A';
  units[0] = kRootOffset << 10;
  units[node] = 'A' | kHasLeaf | kLeafOffset << 10;
  units[node ^ kLeafOffset] = kIsLeaf | 0;  // the text begins at byte 0
  std::string bytes(sizeof(uint32_t) * (1 + units.size()), '\0');
  const auto size = static_cast<uint32_t>(sizeof(uint32_t) * units.size());
  std::memcpy(bytes.data(), &size, sizeof size);
  std::memcpy(bytes.data() + sizeof size, units.data(), size);
  return bytes + "a" + '\0';
}

// Returns a unigram model whose first pieces are ALBERT's.
std::string SentencePieceModel(const std::string& charsmap) {
  enum Type { kNormal = 1, kUnknown, kControl, kUserDefined };
  struct Piece {
    const char* text;
    Type type;
  };
  std::string model;
  for (const Piece& piece : std::initializer_list<Piece>{{"<pad>", kControl},
                                                         {"<unk>", kUnknown},
                                                         {"[CLS]", kControl},
                                                         {"[SEP]", kControl},
                                                         {"[MASK]", kUserDefined},
                                                         {"\u2581", kNormal},
                                                         {"\u2581hell", kNormal},
                                                         {"a", kNormal},
                                                         {"o", kNormal},
                                                         {"9", kNormal},
                                                         {",", kNormal},
                                                         {"9,", kNormal}}) {
    model += BytesField(1, BytesField(1, piece.text) + FloatField(2, -1.5f) +
                               IntegerField(3, static_cast<uint64_t>(piece.type)));
  }
  constexpr uint64_t kUnigram = 1;
  // The trainer's ids of the unknown token, of the two sentence marks (none) and of padding.
  model += BytesField(2, IntegerField(3, kUnigram) + IntegerField(40, 1) +
                             IntegerField(41, ~uint64_t{0}) + IntegerField(42, ~uint64_t{0}) +
                             IntegerField(43, 0));
  return model + BytesField(3, BytesField(1, "some rule") + BytesField(2, charsmap));
}

void WriteSentencePieceFiles(const std::string& corpus) {
  WriteFileAtomically(FileOf(corpus, "sentencepiece", "ok_unigram"), SentencePieceModel(""));
  WriteFileAtomically(FileOf(corpus, "sentencepiece", "ok_charsmap"),
                      SentencePieceModel(Charsmap()));
  WriteFileAtomically(FileOf(corpus, "sentencepiece", "bad_charsmap"),
                      SentencePieceModel("\x7F\0\0\0damaged"));
}

// --- the store's messages, as store_protocol.h lays them out ---

enum Kind : uint32_t { kOk = 1, kOtherJob, kHello, kSet, kGet, kAwait, kAdd, kBye };
constexpr uint32_t kMagic = 0x4c544831;

std::string Message(Kind kind, const std::string& key, const std::string& value,
                    int64_t number = 0) {
  const uint32_t head[] = {kMagic, kind, static_cast<uint32_t>(key.size()),
                           static_cast<uint32_t>(value.size())};
  std::string bytes(sizeof head + sizeof number, '\0');
  std::memcpy(bytes.data(), head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, &number, sizeof number);
  return bytes + key + value;
}

// Returns the list of one text, such as a key or a value.
std::string ListOf(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

std::string Reply(const std::string& value) { return Message(kOk, "", value); }

void WriteStoreFiles(const std::string& corpus) {
  const std::string hello = Message(kHello, "rank 1", "job");
  const auto write = [&](const char* format, const char* name, const std::string& bytes) {
    WriteFileAtomically(FileOf(corpus, format, name), bytes);
  };
  write("store_server", "ok_all_requests",
        hello + Message(kSet, "key", "value") + Message(kGet, "", ListOf("key"), 100) +
            Message(kAdd, "counter", "", 2) + Message(kAdd, "counter", "", -1) +
            Message(kBye, "", ""));
  const std::string list = ListOf("key") + ListOf("no"), ends_early = list.substr(0, 6);
  write("store_server", "ok_lists_of_keys",
        hello + Message(kGet, "", list) + Message(kAwait, "", list, 50) +
            Message(kSet, "no", "value") + Message(kGet, "", list, -1));
  write("store_server", "ok_a_list_that_ends_early", hello + Message(kAwait, "", ends_early));
  write("store_server", "ok_a_list_of_nothing", hello + Message(kGet, "", std::string(4, '\xff')));
  write("store_server", "ok_waits_for_ever",
        hello + Message(kGet, "", ListOf("no such key"), INT64_MAX));
  write("store_server", "ok_waits_for_less_than_nothing",
        hello + Message(kGet, "", ListOf("no such key"), INT64_MIN));
  write("store_server", "ok_sums_that_overflow",
        hello + Message(kAdd, "sum", "", INT64_MAX) + Message(kAdd, "sum", "", INT64_MAX));
  write("store_server", "bad_other_job", Message(kHello, "rank 1", "another job"));
  write("store_server", "bad_no_hello", Message(kSet, "key", "value"));
  write("store_server", "bad_http", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::string replies = Reply("");
  // The fuzzer reads them with and without a greeting before them, so several calls may get each.
  for (int i = 0; i < 2; ++i) replies += Reply(ListOf("value"));
  for (int i = 0; i < 5; ++i) replies += Reply(ListOf(""));
  for (int i = 0; i < 2; ++i) replies += Reply("");
  write("store_client", "ok_all_replies", replies);
  write("store_client", "bad_lists",
        Reply("") + Reply("") + Reply(ListOf("value")) + Reply("") +
            Reply(std::string("\7\0\0\0va", 6)) + Reply(std::string(4, '\7')) + Reply("") +
            Reply(""));
  write("store_client", "bad_other_job", Message(kOtherJob, "", ""));
  write("store_client", "bad_ends_early", Reply(""));
  write("store_client", "bad_http", "HTTP/1.1 400 Bad Request\r\n\r\n");
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_corpus FOLDER\n";
    return 2;
  }
  try {
    lathe::WriteSafetensorsFiles(argv[1]);
    lathe::WriteCompressedFiles(argv[1]);
    lathe::WriteStateFiles(argv[1]);
    lathe::WriteColumnFileDirectories(argv[1]);
    lathe::WriteHdf5Answers(argv[1]);
    lathe::WriteHdf5Chunks(argv[1]);
    lathe::WriteSentencePieceFiles(argv[1]);
    lathe::WriteStoreFiles(argv[1]);
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << '\n';
    return 1;
  }
}
