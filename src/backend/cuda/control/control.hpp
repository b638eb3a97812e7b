// Kernels that only move bookkeeping: slots, blocks, descriptors. Shared by every implementation.
#pragma once

#include "backend/cuda/common/tables.cuh"
#include "replayssm/status.hpp"

namespace replayssm::cuda {

[[nodiscard]] Status initialize_slots(const Tables& tables, void* stream);
[[nodiscard]] Status acquire_slot(const Tables& tables, std::int64_t slot, std::uint64_t seed,
                                  void* stream);
[[nodiscard]] Status release_slot(const Tables& tables, std::int64_t slot, void* stream);
// Cursors only; the copy of records and conv inputs follows in the same stream.
[[nodiscard]] Status fork_cursors(const Tables& tables, std::int64_t source, std::int64_t target,
                                  void* stream);
// Sets what an import or a load says.
[[nodiscard]] Status set_cursors(const Tables& tables, std::int64_t slot, const SlotInfo& info,
                                 std::int32_t conv_valid, void* stream);
// All records are in the checkpoint now.
[[nodiscard]] Status clear_records(const Tables& tables, std::int64_t slot, void* stream);

// Clears bits of the slot's error word, kSlotTorn excepted.
[[nodiscard]] Status clear_errors(const Tables& tables, std::int64_t slot, std::uint32_t bits,
                                  void* stream);

[[nodiscard]] Status begin_rows(const Tables& tables, const Rows& rows, void* stream);
[[nodiscard]] Status commit_rows(const Tables& tables, const Accepted& accepted);
[[nodiscard]] Status abandon_rows(const Tables& tables, bool touched, void* stream);

}  // namespace replayssm::cuda
