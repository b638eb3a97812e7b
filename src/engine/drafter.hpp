// Drafts by prompt lookup: what followed the last time the same few tokens stood in this text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace replayssm::engine {

struct NgramOptions {
  std::int32_t longest = 4;
  std::int32_t shortest = 2;
};

// Up to `count` tokens that followed an earlier occurrence of the longest possible suffix of `text`
// (of options.shortest to options.longest tokens); of several equally long ones the latest. Empty:
// none. A draft may run on past the end of the text into itself, so that a loop is drafted to full
// length.
void ngram_drafts(std::span<const std::int32_t> text, std::int32_t count,
                  const NgramOptions& options, std::vector<std::int32_t>& drafts);

}  // namespace replayssm::engine
