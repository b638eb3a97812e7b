// Tensors of a checkpoint in the safetensors format: one file, or a folder with one file or with an
// index of shards. The files are mapped; nothing is copied.
//
// Format: 8 bytes little-endian header length N, N bytes of JSON {name: {dtype, shape,
// data_offsets}}, then the data that the offsets count from. Headers come from strangers, so every
// claim is checked against the file before a byte of data can be reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/mapped_file.hpp"
#include "replayssm/dtype.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

struct TensorEntry {
  std::string name;
  std::string dtype_name;      // as the file spells it, for example "BF16"
  std::optional<DType> dtype;  // absent where the library has no such type
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // inside the mapping, aligned to the element size
};

// "[3, 4]"; "[]" for a scalar.
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

// The directory of one file's bytes, sorted by name; the spans point into `file`. `source` opens
// each message. kDataLoss where the header is not what the format demands: longer than the file or
// than 100 MB, not JSON, a repeated name, an unknown member type, a shape that overflows or does
// not fit its bytes, offsets that overlap, leave a hole, pass the end or break the alignment, bytes
// left over. A type that the format knows and the library does not is listed with `dtype` absent;
// so is one that nobody knows, whose size is then not checked against the shape.
[[nodiscard]] Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file,
                                                                 std::string_view source);

// The shard file names of model.safetensors.index.json by tensor, sorted by tensor name. A shard
// name must be a plain file name ending in .safetensors (no folder, no ".."), so that an index
// cannot reach outside of its folder. kDataLoss otherwise.
struct ShardEntry {
  std::string tensor;
  std::string file;
};
[[nodiscard]] Result<std::vector<ShardEntry>> parse_shard_index(std::string_view json,
                                                                std::string_view source);

// All tensors of a folder. Moving keeps the spans valid.
class Checkpoint {
 public:
  // Opens `folder`/model.safetensors, or else the shards that model.safetensors.index.json names; a
  // tensor of a shard that the index does not name is left out. kNotFound where neither file exists
  // or a shard or an indexed tensor is missing; kDataLoss as parse_safetensors.
  [[nodiscard]] static Result<Checkpoint> open(const std::filesystem::path& folder);
  // One file, whatever its name.
  [[nodiscard]] static Result<Checkpoint> open_file(const std::filesystem::path& file);

  // Sorted by name; tensors of unsupported types included.
  [[nodiscard]] std::span<const TensorEntry> tensors() const { return tensors_; }

  // Null where there is no such tensor; its type may be unsupported.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;

  // A tensor of a supported type and, if `shape` is given, of exactly that shape. kNotFound,
  // kUnsupported (type) or kInvalidArgument (shape); the message names the tensor.
  [[nodiscard]] Result<TensorEntry> require(std::string_view name) const;
  [[nodiscard]] Result<TensorEntry> require(std::string_view name,
                                            std::span<const std::int64_t> shape) const;

  // Sum over tensors().
  [[nodiscard]] std::uint64_t total_bytes() const;

 private:
  std::vector<MappedFile> files_;
  std::vector<TensorEntry> tensors_;
};

}  // namespace replayssm::model
