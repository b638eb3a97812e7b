// What Unicode added to categories and scripts after the version that PCRE2 knows.
#pragma once

#include <string_view>

namespace replayssm::model {

// Ranges as they stand inside of a character class of PCRE2, for example "\x{1e030}-\x{1e06d}";
// empty where nothing was added. `set` is a category or script such as "L" or "Nd".
[[nodiscard]] std::string_view unicode_additions(std::string_view set);

}  // namespace replayssm::model
