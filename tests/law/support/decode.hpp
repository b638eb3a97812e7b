// Decoding one sequence in two ways that the law says are the same: plainly, a token at a time, and
// as hostile as callers get, with drafts, trees, rejections, aborts and neighbours.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/law/support/machine.hpp"

namespace replayssm::laws {

// Tokens of a sequence; prompt chunks are part of what decides bits, so both ways share them.
struct Segment {
  std::vector<ModelToken> tokens;
  bool prefill = false;
};
using Sequence = std::vector<Segment>;

[[nodiscard]] Sequence random_sequence(Random& random, const Case& made, int tokens);

using Bytes = std::vector<unsigned char>;

// What decoding left: the checkpoint of all layers by the position it stands for, outputs of the
// accepted tokens by position, the logical state at the end.
struct Trace {
  std::map<std::int64_t, Bytes> checkpoints;
  std::map<std::int64_t, Bytes> outputs;
  Bytes end;
  std::string problem;
};

// A token at a time. Needs lent memory for checkpoints.
[[nodiscard]] Trace decode_plain(Machine& machine, std::int64_t slot, const Sequence& sequence);
// With everything that must not matter. `mates` are other held slots, decoded at random beside it.
[[nodiscard]] Trace decode_hostile(Machine& machine, std::int64_t slot, const Sequence& sequence,
                                   const std::vector<std::int64_t>& mates, Random& random);

// One row of T tokens, committed whole; outputs of all layers, conv included, a token each.
[[nodiscard]] std::vector<Bytes> decode_row(Machine& machine, const Row& row, const Keep& keep,
                                            std::string* problem);

// The bits of everything that decides a slot's future.
[[nodiscard]] Bytes export_bytes(Machine& machine, std::int64_t slot, std::string* problem);
// store_state in f32 with the conv histories.
[[nodiscard]] Bytes stored_bytes(Machine& machine, std::int64_t slot, std::string* problem);

// The same token but for one value of the first layer: for twins that must be told apart.
[[nodiscard]] ModelToken nudged(const ModelToken& token);

// Empty, or the first position where the two differ.
// Positions that only one of them has are not compared; a fold happens at a forward's start, so the
// last may be missing.
[[nodiscard]] std::string first_difference(const std::map<std::int64_t, Bytes>& a,
                                           const std::map<std::int64_t, Bytes>& b);

}  // namespace replayssm::laws
