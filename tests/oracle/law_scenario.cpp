// See law_scenario.hpp. Over 400 lines because every operation checks itself against one reference.
// The reference keeps, for every slot, states at all positions by stepping; the law keeps records.
#include "tests/oracle/law_scenario.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <utility>

#include "oracle/law.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

// One layer of one sequence at one position.
struct Point {
  State state;
  std::vector<double> scale;  // [heads, V]: what errors of that row of the state may be measured by
  ConvHistory conv;
};

// One sequence: where it is and where it has been.
struct Reference {
  std::int64_t position = 0;
  int committed = 0;
  std::map<std::int64_t, std::vector<Point>> past;  // position -> [layer]
  [[nodiscard]] const std::vector<Point>& now() const { return past.at(position); }
};

double row_norm(const double* row, int size) {
  double sum = 0.0;
  for (int i = 0; i < size; ++i) sum += row[i] * row[i];
  return std::sqrt(sum);
}

// One token by stepping; also the scale of its outputs.
Point advance(const LawLayer& shape, const Point& before, const Token& token,
              std::vector<double>* outputs, std::vector<double>* output_scale) {
  const Layer& layer = shape.layer;
  const Derived in = derive(layer, token);
  Point after = before;
  *outputs = recurrence_step(layer, token, &after.state);
  output_scale->assign(outputs->size(), 0.0);
  const int width = layer.gate_width();
  for (int head = 0; head < layer.heads; ++head) {
    const int group = layer.group_of(head);
    const double q_norm = row_norm(in.q.data() + group * layer.key_dim, layer.key_dim);
    const double k_norm = row_norm(in.k.data() + group * layer.key_dim, layer.key_dim);
    double decay = 0.0;
    for (int c = 0; c < width; ++c)
      decay = std::max(decay, std::exp(in.log_decay[head * width + c]));
    for (int row = 0; row < layer.value_dim; ++row) {
      const int at = head * layer.value_dim + row;
      const double kept = before.scale[at] * decay;
      const double added = in.weight[head] *
                           (std::abs(token.v[at]) + (layer.delta_rule() ? kept * k_norm : 0.0)) *
                           k_norm;
      const double reached = row_norm(after.state.data() + at * layer.key_dim, layer.key_dim);
      // Rank-one updates of the delta rules do not lengthen a row beyond what v adds, so neither
      // does the scale.
      after.scale[at] =
          std::max({kept, reached,
                    std::min(added, kept + in.weight[head] * std::abs(token.v[at]) * k_norm)});
      double scale = after.scale[at] * q_norm;
      if (!layer.d.empty()) scale += std::abs(layer.d[head] * token.v[at]);
      if (!token.z.empty()) scale *= std::abs(silu(token.z[at]));
      (*output_scale)[at] = scale;
    }
  }
  return after;
}

class Scenario {
 public:
  Scenario(std::uint64_t seed, Fault fault, ScenarioCounts* counts)
      : random_(seed), counts_(*counts), law_(make_law(fault)) {}

  std::string run() {
    const int operations = random_.integer(10, 70);
    for (int i = 0; i < operations && error_.empty(); ++i) operate();
    // The fold's track does not need the read track: without a single stored u the states are the
    // same.
    for (auto& [slot, reference] : references_) {
      law_.poison_updates(slot);
      if (error_.empty()) check_slot("after every stored u is lost", slot);
    }
    return error_;
  }

 private:
  Law make_law(Fault fault) {
    static constexpr int kWindows[] = {1, 2, 3, 5, 7, 13, 16, 23};
    LawConfig config;
    config.window = kWindows[random_.integer(0, 7)];
    config.max_tokens = random_.chance(0.2) ? config.window : random_.integer(1, config.window);
    config.max_tokens = std::min(config.max_tokens, 16);
    config.slots = random_.integer(1, 4);
    config.blocks = config.slots + random_.integer(0, 5);
    config.conv_keeps_ring = random_.chance(0.5);
    config.padding_slot = random_.chance(0.5) ? -1 : 1000;
    config.fault = fault;
    const int layers = random_.integer(1, 3);
    for (int i = 0; i < layers; ++i) {
      LawLayer layer;
      layer.layer = random_layer(random_, static_cast<Rule>(random_.integer(0, 2)));
      layer.conv = random_conv(random_);
      config.layers.push_back(std::move(layer));
    }
    auto law = Law::create(config);
    if (!law.ok()) error_ = law.status().to_string();
    return std::move(law.value());
  }

  [[nodiscard]] const LawConfig& config() const { return law_.config(); }
  [[nodiscard]] int layers() const { return static_cast<int>(config().layers.size()); }

  void fail(const std::string& what) {
    if (error_.empty()) error_ = what;
  }
  void require_ok(const Status& status, const char* what) {
    if (!status.ok()) fail(std::string(what) + ": " + status.to_string());
  }

  // NaN must stand where NaN is expected (nowhere), and errors are measured by the scale.
  void compare(const std::string& what, const std::vector<double>& got,
               const std::vector<double>& want, const std::vector<double>& scale, int columns,
               double tolerance, double* worst) {
    if (got.size() != want.size()) return fail(what + ": size");
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double measure = scale[i / columns] + 1e-290;
      const double error = std::abs(got[i] - want[i]) / measure;
      if (!(error <= tolerance)) {
        std::ostringstream text;
        text.precision(17);
        text << what << ": element " << i << " is " << got[i] << ", expected " << want[i]
             << ", error " << error << " of scale " << measure;
        return fail(text.str());
      }
      *worst = std::max(*worst, error);
    }
  }

  void check_slot(const std::string& what, std::int64_t slot) {
    const Reference& reference = references_.at(slot);
    if (law_.position(slot) != reference.position) fail(what + ": position");
    if (law_.committed(slot) != reference.committed) fail(what + ": committed records");
    check_states(what, law_, slot, reference);
  }

  void check_states(const std::string& what, const Law& law, std::int64_t slot,
                    const Reference& reference) {
    const auto states = law.store_state(slot);
    if (!states.ok()) return fail(what + ": " + states.status().to_string());
    for (int layer = 0; layer < layers(); ++layer) {
      const Point& point = reference.now()[layer];
      const std::string where = what + ": layer " + std::to_string(layer);
      compare(where + " state", states.value()[layer], point.state, point.scale,
              config().layers[layer].layer.key_dim, 1e-13, &counts_.worst_state);
      const auto history = law.store_conv(slot, layer);
      if (history.value() != point.conv) fail(where + " conv history");
    }
  }

  void check_blocks() {
    int used = 0;
    int needed = 0;
    std::map<int, int> sharers;
    for (const auto& [slot, reference] : references_) ++sharers[law_.block_of(slot)];
    for (int block = 0; block < config().blocks; ++block) {
      const int count = law_.reference_count(block);
      if (count != sharers[block]) fail("block references");
      used += count > 0 ? 1 : 0;
      needed += count > 1 ? count : 0;
    }
    if (used + law_.free_blocks() != config().blocks) fail("a block is lost");
    if (law_.free_blocks() < needed) fail("a fold could run out of blocks");
  }

  std::int64_t pick_slot() {
    auto at = references_.begin();
    std::advance(at, random_.integer(0, static_cast<int>(references_.size()) - 1));
    return at->first;
  }

  void operate() {
    const int kind = random_.integer(0, 29);
    if (references_.empty() || kind == 0) {
      allocate();
    } else if (kind == 1) {
      fork();
    } else if (kind == 2) {
      materialize();
    } else if (kind == 3) {
      import_elsewhere();
    } else if (kind == 4 && random_.chance(0.5)) {
      reload();
    } else if (kind == 5 && random_.chance(0.5)) {
      const std::int64_t slot = pick_slot();
      require_ok(law_.release(slot), "release");
      references_.erase(slot);
    } else {
      forward();
    }
    check_blocks();
  }

  void allocate() {
    const auto slot = law_.allocate();
    if (!slot.ok()) {
      if (slot.status().code() != StatusCode::kResourceExhausted) fail(slot.status().to_string());
      return;
    }
    counts_.recycled += ++handed_out_[slot.value()] > 1 ? 1 : 0;
    Reference reference;
    for (const LawLayer& layer : config().layers) {
      Point point;
      point.state = zero_state(layer.layer);
      point.scale.assign(layer.layer.heads * layer.layer.value_dim, 0.0);
      point.conv = zero_history(layer.conv);
      reference.past[0].push_back(std::move(point));
    }
    references_[slot.value()] = std::move(reference);
  }

  void fork() {
    const std::int64_t source = pick_slot();
    const auto slot = law_.fork(source);
    if (!slot.ok()) {
      if (slot.status().code() != StatusCode::kResourceExhausted) fail(slot.status().to_string());
      return;
    }
    ++counts_.forks;
    references_[slot.value()] = references_.at(source);
    check_slot("fork", slot.value());
  }

  void materialize() {
    const std::int64_t source = pick_slot();
    const std::int64_t destination = pick_slot();
    if (source == destination) return;
    const Reference from = references_.at(source);
    const int back = random_.integer(0, from.committed);
    const Status status = law_.materialize(source, from.position - back, destination);
    if (!status.ok()) {
      // Refused only where conv inputs are missing.
      if (status.code() != StatusCode::kUnsupported || back == 0) fail(status.to_string());
      return;
    }
    ++counts_.materialized;
    Reference to;
    to.position = from.position - back;
    to.past[to.position] = from.past.at(to.position);
    references_[destination] = std::move(to);
    check_slot("materialize", destination);
    check_slot("source of materialize", source);
  }

  // Into the same cache, or into another one with its own window and ring, which must then go on
  // alike.
  void import_elsewhere() {
    const std::int64_t source = pick_slot();
    const Reference& reference = references_.at(source);
    const auto snapshot = law_.export_slot(source);
    if (!snapshot.ok()) return fail(snapshot.status().to_string());
    ++counts_.imports;
    const std::int64_t destination = pick_slot();
    if (random_.chance(0.5)) {
      Reference copy = reference;
      require_ok(law_.import_slot(destination, snapshot.value()), "import");
      if (copy.committed >= config().window) copy.committed -= config().window;
      references_[destination] = std::move(copy);
      return check_slot("import", destination);
    }
    LawConfig other = config();
    other.window = random_.integer(1, 24);
    other.max_tokens = random_.integer(1, std::min(other.window, 16));
    other.conv_keeps_ring = random_.chance(0.5);
    auto law = Law::create(other);
    const std::int64_t slot = law.value().allocate().value();
    require_ok(law.value().import_slot(slot, snapshot.value()), "import");
    check_states("import elsewhere", law.value(), slot, reference);
    Reference moved = reference;
    Batch batch;
    batch.rows.push_back(random_row(slot, other.max_tokens));
    run_forward(&law.value(), {{slot, &moved}}, batch, "step after import");
  }

  void reload() {
    const std::int64_t slot = pick_slot();
    Reference& reference = references_.at(slot);
    const std::vector<Point> points = reference.now();
    std::vector<State> states;
    std::vector<ConvHistory> conv;
    for (const Point& point : points) {
      states.push_back(point.state);
      conv.push_back(point.conv);
    }
    require_ok(law_.load_state(slot, states, conv, 77), "load_state");
    reference = Reference{};
    reference.position = 77;
    reference.past[77] = points;
    check_slot("load_state", slot);
  }

  struct Batch {
    std::vector<LawRow> rows;
    std::vector<std::vector<std::vector<Token>>> tokens;  // [layer][row][T]
    std::vector<RowValues> conv;                          // [layer][row][T][channels]
  };

  LawRow random_row(std::int64_t slot, int max_tokens) {
    LawRow row;
    row.slot = slot;
    row.tokens = random_.chance(0.1) ? 0 : random_.integer(1, max_tokens);
    if (random_.chance(0.04)) {
      row.prefill = true;
      row.tokens = random_.integer(1, 3 * max_tokens);
    } else if (random_.chance(0.5)) {
      row.parents = random_parents(random_, row.tokens);
      ++counts_.trees;
    }
    return row;
  }

  void forward() {
    Batch batch;
    std::vector<std::pair<std::int64_t, Reference*>> rows;
    for (auto& [slot, reference] : references_) {
      if (random_.chance(0.3)) continue;
      if (random_.chance(0.2)) {
        batch.rows.push_back(random_row(config().padding_slot, config().max_tokens));
        rows.emplace_back(config().padding_slot, nullptr);
      }
      batch.rows.push_back(random_row(slot, config().max_tokens));
      rows.emplace_back(slot, &reference);
    }
    run_forward(&law_, rows, batch, "forward");
  }

  void run_forward(Law* law, const std::vector<std::pair<std::int64_t, Reference*>>& rows,
                   Batch batch, const std::string& what) {
    const LawConfig& cache = law->config();
    for (const LawLayer& shape : cache.layers) {
      batch.tokens.emplace_back();
      batch.conv.emplace_back();
      for (const LawRow& row : batch.rows) {
        batch.tokens.back().emplace_back();
        batch.conv.back().emplace_back();
        if (row.slot == cache.padding_slot) continue;
        for (int t = 0; t < row.tokens; ++t) {
          batch.tokens.back().back().push_back(random_token(random_, shape.layer));
          batch.conv.back().back().push_back(random_.normals(shape.conv.channels, 1.0));
        }
      }
    }
    require_ok(law->begin(batch.rows), "begin");
    for (const LawDescriptor& row : law->descriptors()) {
      counts_.folds += row.fold > 0 ? 1 : 0;
      counts_.copies += row.read_block != row.write_block ? 1 : 0;
    }
    const bool lost = random_.chance(0.05);
    if (lost && random_.chance(0.3)) {
      ++counts_.aborts;
      return require_ok(law->abort(), "abort");
    }
    require_ok(law->fold(), "fold");
    for (std::size_t index = 0; index < rows.size(); ++index) {
      Reference* reference = rows[index].second;
      if (reference == nullptr || batch.rows[index].prefill) continue;
      if (reference->committed >= cache.window && law == &law_)
        reference->committed -= cache.window;
    }

    // [row][token][layer]
    std::vector<std::vector<std::vector<Point>>> points(rows.size());
    for (std::size_t index = 0; index < rows.size(); ++index) {
      points[index].resize(batch.rows[index].tokens);
    }
    for (int layer = 0; layer < layers() && error_.empty(); ++layer) {
      if (lost && random_.chance(0.5)) {
        ++counts_.aborts;
        return require_ok(law->abort(), "abort");
      }
      run_layer(law, layer, rows, batch, what, &points);
    }
    if (!error_.empty()) return;

    std::vector<Accepted> accepted(rows.size());
    for (std::size_t index = 0; index < rows.size(); ++index) {
      const LawRow& row = batch.rows[index];
      Reference* reference = rows[index].second;
      std::vector<int> path;
      if (row.prefill) {
        accepted[index].count = random_.chance(0.1) ? 0 : row.tokens;
        for (int t = 0; t < accepted[index].count; ++t) path.push_back(t);
      } else if (!row.parents.empty()) {
        path = random_path(random_, row.parents);
        accepted[index].nodes = path;
      } else {
        accepted[index].count = random_.integer(0, row.tokens);
        for (int t = 0; t < accepted[index].count; ++t) path.push_back(t);
      }
      if (reference == nullptr) continue;
      counts_.rejections += static_cast<int>(path.size()) < row.tokens ? 1 : 0;
      counts_.tokens += static_cast<std::int64_t>(path.size());
      for (std::size_t i = 0; i < path.size(); ++i) {
        if (path[i] != static_cast<int>(i)) {
          ++counts_.branches;
          break;
        }
      }
      for (const int node : path) reference->past[++reference->position] = points[index][node];
      if (row.prefill && !path.empty()) {
        reference->committed = 0;
        ++counts_.prefills;
      } else if (!row.prefill) {
        reference->committed += static_cast<int>(path.size());
      }
    }
    require_ok(law->commit(accepted), "commit");
    for (std::size_t index = 0; index < rows.size() && error_.empty(); ++index) {
      if (rows[index].second == nullptr) continue;
      if (law == &law_) {
        check_slot(what, rows[index].first);
      } else {
        check_states(what, *law, rows[index].first, *rows[index].second);
      }
    }
  }

  void run_layer(Law* law, int layer, const std::vector<std::pair<std::int64_t, Reference*>>& rows,
                 const Batch& batch, const std::string& what,
                 std::vector<std::vector<std::vector<Point>>>* points) {
    const LawLayer& shape = law->config().layers[layer];
    RowValues convolved;
    if (shape.conv.width > 0) {
      auto result = law->conv(layer, batch.conv[layer]);
      if (!result.ok()) return fail("conv: " + result.status().to_string());
      convolved = std::move(result.value());
    }
    auto outputs = law->step(layer, batch.tokens[layer]);
    if (!outputs.ok()) return fail("step: " + outputs.status().to_string());
    for (std::size_t index = 0; index < rows.size(); ++index) {
      const LawRow& row = batch.rows[index];
      const Reference* reference = rows[index].second;
      for (int t = 0; t < row.tokens; ++t) {
        const std::vector<double>& got = outputs.value()[index][t];
        if (reference == nullptr) {
          for (const double value : got) {
            if (value != 0.0) fail("a padding row wrote something else than zeros");
          }
          continue;
        }
        const std::string where = what + ": layer " + std::to_string(layer) + " row " +
                                  std::to_string(index) + " token " + std::to_string(t);
        const int parent = row.parents.empty() ? t - 1 : row.parents[t];
        const Point& before =
            parent < 0 ? reference->now()[layer] : (*points)[index][parent][layer];
        std::vector<double> want;
        std::vector<double> scale;
        Point after = advance(shape, before, batch.tokens[layer][index][t], &want, &scale);
        compare(where, got, want, scale, 1, 1e-12, &counts_.worst_output);
        if (shape.conv.width > 0) {
          const std::vector<double> y =
              conv_step(shape.conv, batch.conv[layer][index][t], &after.conv);
          for (std::size_t channel = 0; channel < y.size(); ++channel) {
            const double error = std::abs(convolved[index][t][channel] - y[channel]);
            if (!(error <= 1e-13 * (1.0 + std::abs(y[channel])) * 10.0))
              fail(where + " conv output");
          }
        }
        (*points)[index][t].push_back(std::move(after));
      }
    }
  }

  Random random_;
  ScenarioCounts& counts_;
  std::string error_;
  Law law_;
  std::map<std::int64_t, Reference> references_;
  std::map<std::int64_t, int> handed_out_;
};

}  // namespace

std::string run_scenario(std::uint64_t seed, Fault fault, ScenarioCounts* counts) {
  return Scenario(seed, fault, counts).run();
}

}  // namespace replayssm::oracle::testing
