// See drafter.hpp.
#include "engine/drafter.hpp"

#include <algorithm>
#include <cstddef>

namespace replayssm::engine {

void ngram_drafts(std::span<const std::int32_t> text, std::int32_t count,
                  const NgramOptions& options, std::vector<std::int32_t>& drafts) {
  drafts.clear();
  const auto size = static_cast<std::int64_t>(text.size());
  if (count < 1 || size < 2) return;
  const auto at = [&](std::int64_t i) { return text[static_cast<std::size_t>(i)]; };
  std::int64_t best_length = options.shortest - 1;
  std::int64_t best_end = -1;
  for (std::int64_t end = size - 2; end >= 0; --end) {  // last token of the earlier occurrence
    std::int64_t length = 0;
    while (length < options.longest && length <= end && at(end - length) == at(size - 1 - length))
      ++length;
    if (length > best_length) {
      best_length = length;
      best_end = end;
      if (length == options.longest) break;
    }
  }
  if (best_end < 0) return;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int64_t from = best_end + 1 + i;
    drafts.push_back(from < size ? at(from) : drafts[static_cast<std::size_t>(from - size)]);
  }
}

}  // namespace replayssm::engine
