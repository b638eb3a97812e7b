// NFC over utf8proc's tables: decompose each character, order the marks, compose.
//
// utf8proc_map does all three, but it orders marks by swapping neighbours, which takes quadratic
// time for a text made of marks; a stable sort of each run of marks gives the same order.
#include "model/tokenizer_normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
constexpr std::size_t kLongestDecomposition = 32;  // the longest canonical one has 4 characters

struct PointRange {
  std::uint32_t first;
  std::uint32_t last;
};

constexpr PointRange kBoundaries[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

bool is_boundary(std::uint32_t c) {
  const auto* at = std::lower_bound(
      std::begin(kBoundaries), std::end(kBoundaries), c,
      [](const PointRange& range, std::uint32_t point) { return range.last < point; });
  return at != std::end(kBoundaries) && at->first <= c;
}

utf8proc_propval_t combining_class(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

void order_marks(std::vector<utf8proc_int32_t>& points) {
  auto at = points.begin();
  while (at != points.end()) {
    if (combining_class(*at) == 0) {
      ++at;
      continue;
    }
    const auto end =
        std::find_if(at, points.end(), [](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(at, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    at = end;
  }
}

// Orders and composes `points`, appends them to `out` and clears them. False where the tables
// refuse.
bool flush(std::vector<utf8proc_int32_t>& points, std::string& out) {
  if (points.empty()) return true;
  order_marks(points);
  const utf8proc_ssize_t composed = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), kCompose);
  if (composed < 0) return false;
  for (utf8proc_ssize_t i = 0; i < composed; ++i) {
    append_utf8(out, static_cast<std::uint32_t>(points[static_cast<std::size_t>(i)]));
  }
  points.clear();
  return true;
}

}  // namespace

Result<std::string> normalize_nfc(std::string_view text) {
  // Nothing below U+0300 composes with its neighbour or decomposes for good.
  const bool already = std::all_of(text.begin(), text.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
  if (already) return std::string(text);

  const Status failed(StatusCode::kInternal, "NFC: the Unicode tables refused a character");
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> points;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (is_boundary(step.code_point)) {
      if (!flush(points, out)) return failed;
      out.append(text.substr(0, step.length));
    } else {
      std::array<utf8proc_int32_t, kLongestDecomposition> parts{};
      int boundary = 0;
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          static_cast<utf8proc_int32_t>(step.code_point), parts.data(),
          static_cast<utf8proc_ssize_t>(parts.size()), kDecompose, &boundary);
      if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) return failed;
      points.insert(points.end(), parts.begin(), parts.begin() + count);
    }
    text.remove_prefix(step.length);
  }
  if (!flush(points, out)) return failed;
  return out;
}

}  // namespace replayssm::model
