// What both targets for tokenizers ask of a text that was taken apart.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer.hpp"

namespace replayssm::model {

// A refusal is one line.
inline void abort_unless_one_line(const Status& status) {
  if (status.message().find('\n') != std::string::npos) std::abort();
}

// A stream of the tokens gives `text` in pieces.
inline void abort_unless_streamed(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                                  bool skip_special, std::string_view text) {
  TokenStream stream(tokenizer, skip_special);
  std::string streamed;
  for (const std::int32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  if (streamed != text) std::abort();
}

}  // namespace replayssm::model
