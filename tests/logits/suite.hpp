// Tests of logits that every family passes: prompts in one chunk, in odd chunks, token by token,
// several tokens a step with rejected drafts between, for replay and conventional decoding. A
// family's test program is suite.cpp, which registers the tests under the family's name, and a file
// that says what family() is.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/logits/fixture.hpp"

namespace replayssm::logits {

// Where a family's fixtures are and what a broken twin breaks.
struct Family {
  std::string suite;         // how the names of its tests begin
  std::string folder;        // of tests/fixtures
  std::size_t fixtures = 0;  // that there are at least
  // Ends of the names of tensors of which every fixture has one: the norm in front of the first
  // layer, of which one element is changed by a hundredth, and the norm behind the recurrence of
  // the first layer that has one.
  std::string first_norm;
  std::string inner_norm;
  // Beginnings of the names of tensors that take no part in the logits.
  std::vector<std::string> left_out;
};

// The family of this program.
[[nodiscard]] const Family& family();

}  // namespace replayssm::logits
