// Any bytes as tiktoken.model, behind the first NUL as tokenizer_config.json and behind the second
// as a text to encode. A file that begins with '+' has the 256 single bytes put in front, so that
// changes of a few lines still make a vocabulary.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "model/tokenizer.hpp"
#include "model/utf8.hpp"
#include "tests/fuzz/streamed.hpp"

namespace {

std::string single_bytes() {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    out += kLetters[byte >> 2U];
    out += kLetters[(byte & 3U) << 4U];
    out += "== " + std::to_string(byte) + "\n";
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace replayssm::model;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&rest] {
    const std::size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  };
  static const std::string bytes = single_bytes();
  std::string ranks(next());
  if (!ranks.empty() && ranks.front() == '+') ranks.replace(0, 1, bytes);
  const bool has_config = !rest.empty();
  const std::string_view text_of_config = next();
  std::optional<std::string_view> config;
  if (has_config) config = text_of_config;
  const auto tokenizer = Tokenizer::parse_tiktoken(ranks, config, "fuzz", "fuzz config");
  if (!tokenizer.ok()) {
    abort_unless_one_line(tokenizer.status());
    return 0;
  }
  const std::string_view text = rest;
  const auto ids = tokenizer->encode(text, false);
  if (!ids.ok()) {
    if (find_invalid_utf8(text) == std::string_view::npos) std::abort();
    return 0;
  }
  if (tokenizer->decode(*ids, false) != text) std::abort();
  abort_unless_streamed(*tokenizer, *ids, false, text);
  return 0;
}
