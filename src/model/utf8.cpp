// UTF-8 decoding by the table of well-formed byte sequences (Unicode 15, table 3-7).
#include "model/utf8.hpp"

#include <array>

namespace replayssm::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kQuotedBytes = 80;
constexpr std::size_t kPathBytes = 4096;

struct Lead {
  std::size_t length;  // 0: cannot begin a code point
  std::uint8_t low;    // range of the second byte; later ones are 80..BF
  std::uint8_t high;
  std::uint32_t bits;
};

Lead classify(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0, byte};
  if (byte < 0xC2) return {0, 0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF, byte & 0x1Fu};
  if (byte == 0xE0) return {3, 0xA0, 0xBF, 0};
  if (byte == 0xED) return {3, 0x80, 0x9F, 0x0D};
  if (byte < 0xF0) return {3, 0x80, 0xBF, byte & 0x0Fu};
  if (byte == 0xF0) return {4, 0x90, 0xBF, 0};
  if (byte < 0xF4) return {4, 0x80, 0xBF, byte & 0x07u};
  if (byte == 0xF4) return {4, 0x80, 0x8F, 4};
  return {0, 0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const Lead lead = classify(static_cast<std::uint8_t>(bytes[0]));
  if (lead.length == 0) return {};
  std::uint32_t code_point = lead.bits;
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i, 0xFFFD};
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    const std::uint8_t low = i == 1 ? lead.low : std::uint8_t{0x80};
    const std::uint8_t high = i == 1 ? lead.high : std::uint8_t{0xBF};
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0xFFFD};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Utf8Kind::kValid, lead.length, code_point};
}

std::size_t find_invalid_utf8(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<std::uint8_t>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.kind != Utf8Kind::kValid) return at;
    at += step.length;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

void append_lossy_utf8(std::string& out, std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    out.append(step.kind == Utf8Kind::kValid ? bytes.substr(0, step.length) : kReplacement);
    bytes.remove_prefix(step.length);
  }
}

namespace {

std::string in_quotes_up_to(std::size_t most, std::string_view text) {
  constexpr std::array<char, 17> kHex = {"0123456789abcdef"};
  std::string out = "'";
  const bool cut = text.size() > most;
  std::string_view rest = text;
  while (!rest.empty() && text.size() - rest.size() < most) {
    const Utf8Step step = utf8_step(rest);
    const bool control = step.code_point < 0x20 ||
                         (step.code_point >= 0x7F && step.code_point < 0xA0) ||
                         step.code_point == 0x2028 || step.code_point == 0x2029;
    if (step.kind == Utf8Kind::kValid && !control) {
      out.append(rest.substr(0, step.length));
    } else {
      for (std::size_t i = 0; i < step.length; ++i) {
        const auto byte = static_cast<std::uint8_t>(rest[i]);
        out += "\\x";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
      }
    }
    rest.remove_prefix(step.length);
  }
  out += cut ? "...'" : "'";
  return out;
}

}  // namespace

std::string in_quotes(std::string_view text) { return in_quotes_up_to(kQuotedBytes, text); }

std::string path_in_quotes(std::string_view path) { return in_quotes_up_to(kPathBytes, path); }

}  // namespace replayssm::model
