// Numbers and sizes as people type and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace replayssm::app {

// Each parser returns an empty string and sets `value`, or says what is wrong and leaves it alone.
// The whole text must be a number: no white space, no trailing characters.
[[nodiscard]] std::string parse_integer(std::string_view text, std::int64_t lowest,
                                        std::int64_t highest, std::int64_t& value);
// Any 64-bit pattern, decimal or with 0x.
[[nodiscard]] std::string parse_seed(std::string_view text, std::uint64_t& value);
// A finite number from `lowest` to `highest`.
[[nodiscard]] std::string parse_real(std::string_view text, double lowest, double highest,
                                     double& value);
// 80GiB, 80GB, 512MiB, 1.5GiB or plain bytes; above 0. KiB, MiB, GiB, TiB are powers of 1024, KB,
// MB, GB, TB powers of 1000; the case of the letters does not matter.
[[nodiscard]] std::string parse_size(std::string_view text, std::int64_t& bytes);

// "1.50 GiB", "640 B".
[[nodiscard]] std::string format_bytes(double bytes);
// 1234567 as "1,234,567".
[[nodiscard]] std::string format_count(std::int64_t count);
// A count and its noun in the singular: "1 head", "2 heads".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);

// The text with line breaks and other control characters made visible, so that a message that
// quotes a user's argument or a file's content stays one line.
[[nodiscard]] std::string one_line(std::string_view text);

}  // namespace replayssm::app
