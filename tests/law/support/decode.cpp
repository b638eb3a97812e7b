// See decode.hpp.
#include "tests/law/support/decode.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

namespace replayssm::laws {
namespace {

void append(Bytes* all, const Bytes& more) { all->insert(all->end(), more.begin(), more.end()); }

Bytes token_outputs(const Machine& machine, const Case& made, std::size_t row, int token) {
  Bytes all;
  for (int layer = 0; layer < static_cast<int>(made.layers.size()); ++layer) {
    append(&all, machine.output_bytes(layer, row, token));
    if (made.layers[layer].conv.width > 0) append(&all, machine.conv_bytes(layer, row, token));
  }
  return all;
}

void note(std::string* problem, const Status& status, const char* call) {
  if (problem->empty() && !status.ok()) *problem = std::string(call) + ": " + status.to_string();
}

void record_checkpoint(Machine& machine, std::int64_t slot, Trace* trace) {
  const Result<SlotInfo> info = machine.cache().info(slot);
  note(&trace->problem, info.status(), "info");
  const bool replay = machine.made().config.decode == DecodeMode::kReplay;
  if (!replay || !info.ok() || info->zero || machine.lent() == nullptr) return;
  Bytes all;
  for (int layer = 0; layer < static_cast<int>(machine.made().layers.size()); ++layer) {
    append(&all, machine.checkpoint(slot, layer));
  }
  const std::int64_t at = info->position - info->committed;
  const auto known = trace->checkpoints.emplace(at, all);
  if (!known.second && known.first->second != all && trace->problem.empty()) {
    trace->problem = "the checkpoint at " + std::to_string(at) + " changed without a fold";
  }
}

void run(Machine& machine, const std::vector<Row>& rows, const std::vector<Keep>& keep,
         Trace* trace) {
  std::string written;
  note(&trace->problem, machine.forward(rows, keep, &written), "forward");
  if (trace->problem.empty()) trace->problem = written;
}

Row mate_row(Random& random, const Machine& machine, std::int64_t slot) {
  Row row;
  row.slot = slot;
  row.prefill = random.chance(0.1);
  const int tokens = random.integer(0, machine.made().config.max_step_tokens);
  for (int i = 0; i < tokens; ++i) row.tokens.push_back(random_token(random, machine.made()));
  return row;
}

// A step that carries the next `wanted` tokens along one path, with drafts around them; `path` says
// at which nodes they sit.
Row draft_row(Random& random, const Machine& machine, std::int64_t slot,
              const std::vector<ModelToken>& next, int wanted, int total, std::vector<int>* path) {
  Row row;
  row.slot = slot;
  path->clear();
  const bool tree = total > wanted && random.chance(0.6);
  for (int i = 0; i < total; ++i) {
    const int placed = static_cast<int>(path->size());
    const int left = total - i;
    const bool place = placed < wanted && (!tree || left == wanted - placed || random.chance(0.5));
    if (tree) {
      row.parents.push_back(place ? (placed == 0 ? -1 : path->back()) : random.integer(-1, i - 1));
    }
    if (place) path->push_back(i);
    row.tokens.push_back(place ? next[placed] : random_token(random, machine.made()));
  }
  return row;
}

}  // namespace

Sequence random_sequence(Random& random, const Case& made, int tokens) {
  Sequence sequence;
  while (tokens > 0) {
    Segment segment;
    segment.prefill = random.chance(0.3);
    int count = std::min(tokens, random.integer(1, segment.prefill ? 12 : 30));
    count = static_cast<int>(
        std::min<std::int64_t>(count, segment.prefill ? made.config.max_step_tokens : count));
    tokens -= count;
    for (int i = 0; i < count; ++i) segment.tokens.push_back(random_token(random, made));
    sequence.push_back(std::move(segment));
  }
  return sequence;
}

Trace decode_plain(Machine& machine, std::int64_t slot, const Sequence& sequence) {
  Trace trace;
  std::int64_t position = 0;
  for (const Segment& segment : sequence) {
    const std::size_t step = segment.prefill ? segment.tokens.size() : 1;
    for (std::size_t i = 0; i < segment.tokens.size() && trace.problem.empty(); i += step) {
      Row row;
      row.slot = slot;
      row.prefill = segment.prefill;
      row.tokens.assign(segment.tokens.begin() + static_cast<std::ptrdiff_t>(i),
                        segment.tokens.begin() + static_cast<std::ptrdiff_t>(i + step));
      run(machine, {row}, {{static_cast<int>(step), {}}}, &trace);
      for (std::size_t t = 0; t < step; ++t) {
        trace.outputs[position++] = token_outputs(machine, machine.made(), 0, static_cast<int>(t));
      }
      record_checkpoint(machine, slot, &trace);
    }
  }
  trace.end = stored_bytes(machine, slot, &trace.problem);
  return trace;
}

Trace decode_hostile(Machine& machine, std::int64_t slot, const Sequence& sequence,
                     const std::vector<std::int64_t>& mates, Random& random) {
  Trace trace;
  std::int64_t position = 0;
  for (const Segment& segment : sequence) {
    std::size_t done = 0;
    while (done < segment.tokens.size() && trace.problem.empty()) {
      const int left = static_cast<int>(segment.tokens.size() - done);
      const int most = machine.made().config.max_step_tokens;
      const bool prefill = segment.prefill;
      const int total = random.integer(0, most);
      // Conventional decoding must keep something of what it wrote over the state.
      const int least = machine.made().config.decode == DecodeMode::kConventional ? 1 : 0;
      const int wanted =
          prefill ? left : random.integer(std::min(least, total), std::min(total, left));
      const std::vector<ModelToken> next(segment.tokens.begin() + static_cast<std::ptrdiff_t>(done),
                                         segment.tokens.end());
      std::vector<int> path;
      Row own = prefill ? Row{slot, next, {}, true, 0}
                        : draft_row(random, machine, slot, next, wanted, total, &path);
      std::vector<Row> rows;
      std::vector<Keep> keep;
      for (const std::int64_t mate : mates) {
        if (!random.chance(0.6)) continue;
        rows.push_back(mate_row(random, machine, mate));
        const int count = rows.back().count();
        keep.push_back(
            {rows.back().prefill ? count : random.integer(std::min(least, count), count), {}});
      }
      const auto at = static_cast<std::size_t>(random.integer(0, static_cast<int>(rows.size())));
      rows.insert(rows.begin() + static_cast<std::ptrdiff_t>(at), own);
      keep.insert(keep.begin() + static_cast<std::ptrdiff_t>(at),
                  Keep{wanted, own.parents.empty() ? std::vector<int>{} : path});
      // A forward that is given up on the way, before or after its fold.
      if (!prefill && least == 0 && random.chance(0.15)) {
        std::vector<Row> lost = {own};
        note(&trace.problem, machine.begin(lost), "begin");
        if (random.chance(0.7)) note(&trace.problem, machine.fold(), "fold");
        note(&trace.problem, machine.cache().abort(), "abort");
        record_checkpoint(machine, slot, &trace);
      }
      run(machine, rows, keep, &trace);
      for (int t = 0; t < wanted && trace.problem.empty(); ++t) {
        const int node = path.empty() ? t : path[t];
        trace.outputs[position + t] = token_outputs(machine, machine.made(), at, node);
      }
      position += wanted;
      done += static_cast<std::size_t>(wanted);
      record_checkpoint(machine, slot, &trace);
    }
  }
  trace.end = stored_bytes(machine, slot, &trace.problem);
  return trace;
}

std::vector<Bytes> decode_row(Machine& machine, const Row& row, const Keep& keep,
                              std::string* problem) {
  Trace trace;
  run(machine, {row}, {keep}, &trace);
  std::vector<Bytes> outputs;
  for (int t = 0; t < row.count() && trace.problem.empty(); ++t) {
    outputs.push_back(token_outputs(machine, machine.made(), 0, t));
  }
  if (problem->empty()) *problem = trace.problem;
  return outputs;
}

Bytes export_bytes(Machine& machine, std::int64_t slot, std::string* problem) {
  const Result<std::vector<std::byte>> bytes = machine.cache().export_slot(slot);
  note(problem, bytes.status(), "export");
  Bytes all;
  if (bytes.ok()) {
    for (const std::byte byte : *bytes) all.push_back(static_cast<unsigned char>(byte));
  }
  return all;
}

Bytes stored_bytes(Machine& machine, std::int64_t slot, std::string* problem) {
  Machine::Stored stored;
  note(problem, machine.store(slot, DType::kF32, false, &stored), "store_state");
  Bytes all;
  for (const Bytes& bytes : stored.state_bytes) append(&all, bytes);
  for (const auto& conv : stored.conv) {
    for (const auto& input : conv) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(input.data());
      all.insert(all.end(), bytes, bytes + input.size() * sizeof(double));
    }
  }
  return all;
}

ModelToken nudged(const ModelToken& token) {
  auto copy = std::make_shared<std::vector<LayerToken>>(*token);
  // Doubling and halving are exact in every dtype.
  double& value = (*copy)[0].token.v[0];
  value = value == 0.0 ? 1.0 : value * (std::abs(value) < 1.0 ? 2.0 : 0.5);
  return copy;
}

std::string first_difference(const std::map<std::int64_t, Bytes>& a,
                             const std::map<std::int64_t, Bytes>& b) {
  for (const auto& [position, bytes] : a) {
    const auto other = b.find(position);
    if (other != b.end() && other->second != bytes) {
      return "bits differ at position " + std::to_string(position);
    }
  }
  return {};
}

}  // namespace replayssm::laws
