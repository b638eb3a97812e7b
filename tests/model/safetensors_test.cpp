// Safetensors: what the reference package writes is read bit for bit; every hostile header is
// refused.
#include "model/safetensors.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/model/temp_folder.hpp"

namespace replayssm::model {
namespace {

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>((length >> (8 * i)) & 0xFF));
  return file + rest;
}

// A file of this header, padded with spaces so that the data begin at a multiple of 8.
std::string file_of(std::string header, const std::string& data) {
  while (header.size() % 8 != 0) header += ' ';
  return with_length(header.size(), header + data);
}

Result<std::vector<TensorEntry>> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "f");
}

std::string fault(const std::string& file) {
  // An exact-size copy, so that the address sanitizer sees any read past the end.
  const std::vector<char> exact(file.begin(), file.end());
  const auto parsed = parse_safetensors(std::as_bytes(std::span(exact)), "f");
  if (parsed.ok()) return "accepted";
  EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss) << parsed.status().to_string();
  EXPECT_EQ(parsed.status().message().find('\n'), std::string::npos);
  return parsed.status().message();
}

#define EXPECT_FAULT(file, text) EXPECT_NE(fault(file).find(text), std::string::npos) << fault(file)

const std::string kTwoTensors = R"({"__metadata__":{"format":"pt"},)"
                                R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                R"("a":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST(Safetensors, ReadsTensorsSortedByName) {
  const std::string file = file_of(kTwoTensors, std::string(32, '\x7'));
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  ASSERT_EQ(parsed->size(), 2u);
  const TensorEntry& a = (*parsed)[0];
  const TensorEntry& b = (*parsed)[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kBF16);
  EXPECT_EQ(a.shape, std::vector<std::int64_t>{4});
  EXPECT_EQ(a.bytes.size(), 8u);
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(reinterpret_cast<const char*>(b.bytes.data()), file.data() + file.size() - 32);
  EXPECT_EQ(reinterpret_cast<const char*>(a.bytes.data()), file.data() + file.size() - 8);
}

TEST(Safetensors, EmptyFilesAndTensors) {
  EXPECT_EQ(fault(file_of("{}", "")), "accepted");
  EXPECT_EQ(fault(file_of(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},)"
                          R"("s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})",
                          std::string(8, 'x'))),
            "accepted");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string file = file_of(kTwoTensors, std::string(32, 'x'));
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(fault(file.substr(0, size)), "accepted") << size;
  }
  EXPECT_EQ(fault(file), "accepted");
}

TEST(Safetensors, HostileLengths) {
  EXPECT_FAULT("1234567", "at least 8 bytes");
  EXPECT_FAULT(with_length(100'000'001, "{}"), "at most 100000000");
  EXPECT_FAULT(with_length(~std::uint64_t{0}, "{}"), "at most 100000000");
  EXPECT_FAULT(with_length(3, "{}"), "only 2 follow");
  EXPECT_FAULT(with_length(0, ""), "does not begin with '{'");
  EXPECT_FAULT(with_length(3, " {}"), "does not begin with '{'");
  EXPECT_FAULT(with_length(2, "[]"), "does not begin with '{'");
}

TEST(Safetensors, HostileJson) {
  EXPECT_FAULT(file_of("{\"a\xFF\":1}", ""), "not UTF-8");
  EXPECT_FAULT(file_of("{\"a\":", ""), "malformed");
  EXPECT_FAULT(file_of(R"({"a":1})", ""), "dtype must be a text");
  EXPECT_FAULT(file_of(R"({"a":{"dtype":"F32","shape":3,"data_offsets":[0,0]}})", ""),
               "shape must be a list");
  EXPECT_FAULT(file_of(R"({"__metadata__":{"a":1}})", ""), "__metadata__");
  EXPECT_FAULT(file_of(R"({"__metadata__":[]})", ""), "__metadata__");
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_FAULT(file_of("{\"a\":" + entry + ",\"a\":" + entry + "}", "1234"), "appears twice");
  EXPECT_FAULT(file_of("{\"a\":" + std::string(5000, '['), ""), "deeper");
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                std::size_t bytes) {
  return file_of(R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
                     offsets + "}}",
                 std::string(bytes, 'x'));
}

TEST(Safetensors, HostileShapes) {
  EXPECT_EQ(fault(one("F32", "[2,2]", "[0,16]", 16)), "accepted");
  EXPECT_FAULT(one("F32", "[2,-2]", "[0,16]", 16), "whole numbers from 0");
  EXPECT_FAULT(one("F32", "[2.0,2]", "[0,16]", 16), "whole numbers from 0");
  EXPECT_FAULT(one("F32", "[\"2\"]", "[0,16]", 16), "whole numbers from 0");
  EXPECT_FAULT(one("F32", "[4294967296,4294967296]", "[0,16]", 16), "overflows");
  // 2^62 elements of 4 bytes are 2^64 bytes: the product of the shape alone fits.
  EXPECT_FAULT(one("F32", "[4611686018427387904]", "[0,0]", 0), "overflows");
  EXPECT_FAULT(one("F32", "[0,4294967296,4294967296]", "[0,0]", 0), "overflows");
  EXPECT_FAULT(one("F32", "[3]", "[0,16]", 16), "takes 12 bytes, data_offsets hold 16");
  EXPECT_FAULT(one("F32", "[5]", "[0,16]", 16), "takes 20 bytes, data_offsets hold 16");
  EXPECT_FAULT(one("BF16", "[4]", "[0,16]", 16), "takes 8 bytes");
  std::string axes = "[1";
  for (int i = 0; i < 70; ++i) axes += ",1";
  EXPECT_FAULT(one("F32", axes + "]", "[0,4]", 4), "at most 64 axes, given a list of 71");
}

TEST(Safetensors, HostileOffsets) {
  EXPECT_FAULT(one("F32", "[4]", "[16,0]", 16), "not a range");
  EXPECT_FAULT(one("F32", "[4]", "[-16,0]", 16), "not a range");
  EXPECT_FAULT(one("F32", "[4]", "[0,17]", 16), "pass the end");
  EXPECT_FAULT(one("F32", "[4]", "[9223372036854775792,9223372036854775807]", 16), "pass the end");
  EXPECT_FAULT(one("F32", "[4]", "[0]", 16), "two whole numbers");
  EXPECT_FAULT(one("F32", "[4]", "[0,16.0]", 16), "two whole numbers");
  EXPECT_FAULT(one("F32", "[4]", "[0,16]", 17), "1 bytes after the last tensor");
  EXPECT_FAULT(one("F32", "[4]", "[4,20]", 20), "leaves a hole");
  const std::string overlap = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  EXPECT_FAULT(file_of(overlap, std::string(12, 'x')), "'b': overlaps");
  const std::string same = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_FAULT(file_of(same, std::string(8, 'x')), "overlaps");
  const std::string odd = R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                          R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  EXPECT_FAULT(file_of(odd, std::string(5, 'x')), "no multiple of its element size 4");
}

TEST(Safetensors, OtherTypesAreListedAndRefusedOnRequest) {
  TempFolder folder("types");
  folder.write("model.safetensors",
               file_of(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                       R"("f":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                       R"("n":{"dtype":"NEW5","shape":[9],"data_offsets":[12,14]}})",
                       std::string(14, 'x')));
  const Result<Checkpoint> opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->tensors().size(), 3u);
  EXPECT_EQ(opened->find("n")->dtype_name, "NEW5");
  EXPECT_FALSE(opened->find("n")->dtype.has_value());
  for (const char* name : {"d", "n"}) {
    const auto entry = opened->require(name);
    ASSERT_FALSE(entry.ok());
    EXPECT_EQ(entry.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(entry.status().message().find("supported are F32"), std::string::npos);
  }
  EXPECT_EQ(opened->require("x").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(opened->require("f", std::vector<std::int64_t>{1}).ok());
  const auto wrong = opened->require("f", std::vector<std::int64_t>{1, 1});
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.status().message().find("[1, 1] is required, given [1]"), std::string::npos);
  EXPECT_EQ(opened->total_bytes(), 14u);
  // A size that contradicts the shape is a fault in known types only.
  EXPECT_FAULT(one("F64", "[1]", "[0,4]", 4), "takes 8 bytes");
}

std::string shard(const std::string& name) {
  return file_of("{\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                 name + name);
}

TEST(Safetensors, Shards) {
  TempFolder folder("shards");
  folder.write("m-1.safetensors", shard("aa"));
  folder.write("m-2.safetensors", shard("bb"));
  folder.write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":8},"weight_map":{"bb":"m-2.safetensors","aa":"m-1.safetensors"}})");
  Result<Checkpoint> opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const Checkpoint moved = std::move(opened).value();  // the spans must survive a move
  ASSERT_EQ(moved.tensors().size(), 2u);
  EXPECT_EQ(std::memcmp(moved.find("bb")->bytes.data(), "bbbb", 4), 0);
  EXPECT_EQ(std::memcmp(moved.find("aa")->bytes.data(), "aaaa", 4), 0);

  folder.write("model.safetensors.index.json", R"({"weight_map":{"cc":"m-1.safetensors"}})");
  EXPECT_EQ(Checkpoint::open(folder.path()).status().code(), StatusCode::kNotFound);
  folder.write("model.safetensors.index.json", R"({"weight_map":{"aa":"m-3.safetensors"}})");
  EXPECT_EQ(Checkpoint::open(folder.path()).status().code(), StatusCode::kNotFound);
}

TEST(Safetensors, ShardNamesStayInTheFolder) {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors",
                           "..safetensors", ".safetensors", "a\\b.safetensors", "x.bin", "",
                           "x.safetensors/..", ".hidden.safetensors"}) {
    std::string escaped;
    for (const char* c = name; *c != '\0'; ++c) escaped += *c == '\\' ? "\\\\" : std::string(1, *c);
    const auto index = parse_shard_index(R"({"weight_map":{"t":")" + escaped + "\"}}", "i");
    ASSERT_FALSE(index.ok()) << name;
    EXPECT_EQ(index.status().code(), StatusCode::kDataLoss);
  }
  EXPECT_TRUE(parse_shard_index(R"({"weight_map":{"t":"a-00001-of-2.safetensors"}})", "i").ok());
  EXPECT_FALSE(parse_shard_index(R"({"weight_map":[]})", "i").ok());
  EXPECT_FALSE(parse_shard_index(R"({"weight_map":{"t":3}})", "i").ok());
  EXPECT_FALSE(parse_shard_index("{}", "i").ok());
}

TEST(Safetensors, PathsThatAreNoFiles) {
  TempFolder folder("paths");
  EXPECT_EQ(Checkpoint::open(folder.path()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::open_file(folder.path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Checkpoint::open_file(folder.path() / "x").status().code(), StatusCode::kNotFound);
  folder.write("model.safetensors", "");
  EXPECT_EQ(Checkpoint::open(folder.path()).status().code(), StatusCode::kDataLoss);
}

TEST(Safetensors, AProcessWithoutDescriptorsBlamesNoFile) {
  const TempFolder folder("descriptors");
  folder.write("model.safetensors", file_of("{}", ""));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = Checkpoint::open(folder.path()).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  EXPECT_TRUE(Checkpoint::open(folder.path()).ok());
}

// Written by the reference package: see tests/fixtures/README.md.
TEST(Safetensors, ReadsWhatTheReferenceWrote) {
  const auto folder = std::filesystem::path(REPLAYSSM_SOURCE_DIR) / "tests/fixtures/nemotron_h";
  int opened = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    const auto model = Checkpoint::open(entry.path());
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    const auto expected = Checkpoint::open_file(entry.path() / "expected.safetensors");
    ASSERT_TRUE(expected.ok()) << expected.status().to_string();
    ASSERT_NE(expected->find("input_ids"), nullptr);
    EXPECT_EQ(expected->find("input_ids")->dtype, DType::kI64);
    EXPECT_FALSE(expected->find("logits_f64")->dtype.has_value());
    EXPECT_GT(model->tensors().size(), 5u);
    ++opened;
  }
  EXPECT_GE(opened, 6);
}

}  // namespace
}  // namespace replayssm::model
