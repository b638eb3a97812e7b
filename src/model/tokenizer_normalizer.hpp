// Unicode normalization form C, the one normalizer that byte-level tokenizers use.
#pragma once

#include <string>
#include <string_view>

#include "replayssm/status.hpp"

namespace replayssm::model {

// `text` must be well-formed UTF-8. Linear in its length (but for n log n in runs of combining
// marks), whatever the text. Composition follows the reference
// package, which knows Unicode 9.
[[nodiscard]] Result<std::string> normalize_nfc(std::string_view text);

}  // namespace replayssm::model
