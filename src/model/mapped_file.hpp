// Files of a checkpoint folder: memory-mapped where they are large, read whole where they are text.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "replayssm/status.hpp"

namespace replayssm::model {

// A whole regular file mapped read-only; the mapping lives as long as the object. Moving keeps the
// address. The file must not shrink while it is mapped: touching a page that is gone raises SIGBUS,
// which this class does not guard against (replace a checkpoint by renaming, never by truncating).
class MappedFile {
 public:
  // kNotFound where there is no such file, kInvalidArgument where it is not a regular file,
  // kDataLoss where it cannot be read or mapped. An empty file is legal and maps to no bytes.
  [[nodiscard]] static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The content of a text file of at most `max_bytes`. Errors as MappedFile::open; a larger file is
// kInvalidArgument.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path,
                                                 std::size_t max_bytes);

}  // namespace replayssm::model
