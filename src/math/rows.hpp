// begin's and commit's checks of what only the arrays show, on a host that can read them: all rows
// by the rules of law_rows.hpp, and what to say of the first that is refused.
#pragma once

#include "core/tables.hpp"

namespace replayssm {

// Passing, it leaves each row's mark in table.slots.row; failing, it has changed nothing.
[[nodiscard]] Status check_rows(CacheTable& table, const Rows& rows);

// What is accepted of the open forward.
[[nodiscard]] Status check_accepted(const CacheTable& table, const Accepted& accepted);

}  // namespace replayssm
