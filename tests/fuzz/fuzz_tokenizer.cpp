// Any text as tokenizer.json and, behind its first NUL, as a text to encode with it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "model/tokenizer.hpp"
#include "model/utf8.hpp"
#include "tests/fuzz/streamed.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace replayssm::model;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t nul = all.find('\0');
  const std::string_view text = nul == std::string_view::npos ? "hello" : all.substr(nul + 1);
  const auto tokenizer = Tokenizer::parse(all.substr(0, nul), "fuzz");
  if (!tokenizer.ok()) {
    abort_unless_one_line(tokenizer.status());
    return 0;
  }
  const auto ids = tokenizer->encode(text);
  if (!ids.ok()) return 0;
  const std::string decoded = tokenizer->decode(*ids, true);
  if (find_invalid_utf8(decoded) != std::string_view::npos) std::abort();
  abort_unless_streamed(*tokenizer, *ids, true, decoded);
  return 0;
}
