// Tests of logits that every family passes: prompts in one chunk, in odd chunks, token by token,
// several tokens a step with rejected drafts between, for replay and conventional decoding. A
// family's test file names its fixtures (Family) and instantiates them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replayssm/cache.hpp"
#include "tests/logits/fixture.hpp"

namespace replayssm::logits {

enum class Path { kOneChunk, kOddChunks, kTokens, kDrafts, kMixed };

[[nodiscard]] const char* path_name(Path path);

// Where a family's fixtures are and what a broken twin breaks.
struct Family {
  std::string folder;  // of tests/fixtures
  // Ends of the names of tensors of which every fixture has one: the norm in front of the first
  // layer, of which one element is changed by a hundredth, and the norm behind the recurrence of
  // the first layer that has one.
  std::string first_norm;
  std::string inner_norm;
  // Beginnings of the names of tensors that take no part in the logits.
  std::vector<std::string> left_out;
};

// The logits of one fixture along one path are the reference's, and those of a broken twin are not.
void check_path(const Family& family, const std::string& name, DecodeMode decode, Path path);

// Every tensor of every fixture takes part: scaled by a hundredth it is noticed. Those that are
// left out do not.
void check_every_tensor(const Family& family);

// Products in bf16 move the logits as roundings of all weights do; a norm that is off by half moves
// them further.
void check_bf16(const Family& family);

}  // namespace replayssm::logits
