// UTF-8 as the model files and the tokenizer need it: validation, code points, lossy repair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace replayssm::model {

enum class Utf8Kind : std::uint8_t { kValid, kInvalid, kIncomplete };

// What stands at the front of some bytes. kValid: one code point of `length` bytes. kInvalid: a
// maximal ill-formed part of `length` bytes (Unicode 15, section 3.9, table 3-8: one U+FFFD).
// kIncomplete: all `length` bytes that are left begin a code point whose rest is missing.
struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  std::size_t length = 1;
  std::uint32_t code_point = 0xFFFD;
};

// `bytes` must not be empty.
[[nodiscard]] Utf8Step utf8_step(std::string_view bytes);

// Offset of the first byte that is not part of well-formed UTF-8; npos where all is well formed.
[[nodiscard]] std::size_t find_invalid_utf8(std::string_view bytes);

// `code_point` must be a Unicode scalar value.
void append_utf8(std::string& out, std::uint32_t code_point);

// Appends `bytes` with U+FFFD for every ill-formed part, an incomplete end included.
void append_lossy_utf8(std::string& out, std::string_view bytes);

// The text between single quotes on one line for messages: control characters and bytes that are
// not UTF-8 as \xNN, cut after 80 bytes.
[[nodiscard]] std::string in_quotes(std::string_view text);

// The same for a path, which ends in what a reader has to see: cut after 4,096 bytes, the longest
// that Linux takes.
[[nodiscard]] std::string path_in_quotes(std::string_view path);

}  // namespace replayssm::model
