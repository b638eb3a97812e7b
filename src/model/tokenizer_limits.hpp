// Bounds on what the files of a tokenizer may claim, so that a hostile one cannot exhaust memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace replayssm::model {

constexpr std::int64_t kMaxTokenIds = std::int64_t{1} << 22;
constexpr std::size_t kMaxTokenizerBytes = 256'000'000;
constexpr std::size_t kMaxRankTokenBytes = 1024;  // of a token of a tiktoken file
// Ids behind the ranks of a tiktoken file; the released vocabularies use 256.
constexpr std::int64_t kMaxSpecialIds = 1 << 16;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;  // positions are kept in 32 bits

}  // namespace replayssm::model
