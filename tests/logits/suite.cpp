// See suite.hpp.
#include "tests/logits/suite.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "engine/model_impl.hpp"
#include "engine/runner.hpp"
#include "replayssm/cache.hpp"

namespace replayssm::logits {
namespace {

enum class Path { kOneChunk, kOddChunks, kTokens, kDrafts, kMixed };

const char* path_name(Path path) {
  switch (path) {
    case Path::kOneChunk: return "OneChunk";
    case Path::kOddChunks: return "OddChunks";
    case Path::kTokens: return "Tokens";
    case Path::kDrafts: return "Drafts";
    case Path::kMixed: return "Mixed";
  }
  return "";
}

// Throws, which fails the test, where there is no model; so does the Feeder's constructor.
Model load(const std::string& folder, ComputeType compute) {
  LoadOptions options;
  options.compute = compute;
  options.threads = 2;
  Result<Model> model = Model::load(folder, options);
  if (!model.ok()) throw std::runtime_error(folder + ": " + model.status().to_string());
  return *model;
}

// Feeds all texts side by side along a path and returns the logits of each. Sequences advance by
// different amounts in one forward where the path allows it.
class Feeder {
 public:
  Feeder(const Model& model, DecodeMode decode, std::int32_t window, std::vector<Expected> texts)
      : vocab_(model.info().vocab),
        texts_(std::move(texts)),
        done_(texts_.size(), 0),
        logits_(texts_.size()) {
    engine::RunnerOptions options;
    options.decode = decode;
    options.window = window;
    options.max_step_tokens = 4;
    options.max_sequences = static_cast<std::int64_t>(texts_.size());
    options.context = 1000;
    options.threads = 2;
    auto runner = engine::Runner::create(*model.impl().layers, options);
    if (!runner.ok()) throw std::runtime_error(runner.status().to_string());
    runner_ = std::move(*runner);
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const auto sequence = runner_->open(i);
      if (!sequence.ok()) throw std::runtime_error(sequence.status().to_string());
      sequences_.push_back(*sequence);
    }
  }

  std::vector<std::vector<float>> run(Path path) {
    for (int turn = 0; !finished(); ++turn) {
      std::vector<engine::RunnerRow> rows;
      std::vector<std::size_t> owners;
      std::vector<std::int32_t> accepted;
      std::vector<std::vector<std::int32_t>> fed(texts_.size());
      for (std::size_t i = 0; i < texts_.size(); ++i) {
        const std::size_t left = texts_[i].tokens.size() - done_[i];
        if (left == 0) continue;
        add_row(path, turn, i, left, fed[i], rows, owners, accepted);
      }
      const Status forward = runner_->forward(rows);
      EXPECT_TRUE(forward.ok()) << forward.to_string();
      if (!forward.ok()) return logits_;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::int32_t t = 0; t < accepted[row]; ++t) {
          const std::span<const float> values = runner_->logits(row, t);
          logits_[owners[row]].insert(logits_[owners[row]].end(), values.begin(), values.end());
        }
        done_[owners[row]] += static_cast<std::size_t>(accepted[row]);
      }
      const Status commit = runner_->commit(accepted);
      EXPECT_TRUE(commit.ok()) << commit.to_string();
      if (!commit.ok()) return logits_;
    }
    return logits_;
  }

 private:
  bool finished() const {
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      if (done_[i] < texts_[i].tokens.size()) return false;
    }
    return true;
  }

  void add_row(Path path, int turn, std::size_t i, std::size_t left, std::vector<std::int32_t>& fed,
               std::vector<engine::RunnerRow>& rows, std::vector<std::size_t>& owners,
               std::vector<std::int32_t>& accepted) {
    constexpr std::size_t kOdd[] = {5, 1, 7, 2, 3, 11};
    std::size_t take = left;
    std::size_t wrong = 0;  // tokens after the right ones, to be rejected
    bool prefill = path == Path::kOneChunk || path == Path::kOddChunks;
    const auto step = static_cast<std::size_t>(turn) + i;
    if (path == Path::kOddChunks) take = kOdd[step % std::size(kOdd)];
    if (path == Path::kTokens) take = 1;
    if (path == Path::kDrafts) {
      take = 1 + step % 4;
      wrong = (4 - take) * (step % 2);
    }
    if (path == Path::kMixed) {
      // One sequence gets prompt chunks while the other steps.
      prefill = step % 3 == 0;
      take = prefill ? 4 : 1 + step % 3;
      wrong = prefill ? 0 : step % 2;
    }
    take = std::min(take, left);
    const auto first = texts_[i].tokens.begin() + static_cast<std::ptrdiff_t>(done_[i]);
    fed.assign(first, first + static_cast<std::ptrdiff_t>(take));
    for (std::size_t k = 0; k < wrong; ++k) {
      fed.push_back(static_cast<std::int32_t>(
          (texts_[i].tokens[0] + 3 * static_cast<int>(k) + turn) % vocab_));
    }
    engine::RunnerRow row;
    row.sequence = sequences_[i];
    row.tokens = fed;
    row.prefill = prefill;
    rows.push_back(row);
    owners.push_back(i);
    accepted.push_back(static_cast<std::int32_t>(take));
  }

  std::int64_t vocab_;
  std::vector<Expected> texts_;
  std::vector<std::size_t> done_;
  std::vector<std::vector<float>> logits_;
  std::vector<std::int32_t> sequences_;
  std::unique_ptr<engine::Runner> runner_;
};

// The tensor whose name ends so; of several the first by name.
std::string tensor_with(const std::string& folder, const std::string& end) {
  for (const std::string& tensor : tensor_names(folder)) {
    if (tensor.ends_with(end)) return tensor;
  }
  ADD_FAILURE() << folder << " has no tensor that ends in " << end;
  return "";
}

bool any_rejected(const std::vector<Expected>& texts, const std::vector<std::vector<float>>& ours,
                  std::int64_t layers) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!judge(texts[i], ours[i], layers).accepted()) return true;
  }
  return false;
}

// How far the logits move when every weight is off by up to one rounding to bf16: what the model
// makes of perturbations of that size, by f32 products.
double bf16_sensitivity(const std::string& folder, const std::string& target,
                        const std::vector<Expected>& texts) {
  double largest = 0.0;
  for (std::uint64_t draw = 0; draw < 3; ++draw) {
    std::mt19937_64 random(draw);
    std::uniform_real_distribution<float> uniform(-0x1.0p-8F, 0x1.0p-8F);
    write_changed(folder, target, "",
                  [&](float value) { return value * (1.0F + uniform(random)); });
    const auto moved =
        Feeder(load(target, ComputeType::kF32), DecodeMode::kReplay, 5, texts).run(Path::kOneChunk);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      largest = std::max(largest, judge_within(texts[i], moved[i], 1.0).worst);
    }
  }
  return largest;
}

std::string scratch(const std::string& name) {
  return std::string(REPLAYSSM_TEST_TMP) + "/" + name;
}

// The logits of one fixture along one path are the reference's, and those of a broken twin are not.
void match_transformers(const std::string& name, DecodeMode decode, Path path) {
  const std::string folder = fixture_folder(family().folder, name);
  const std::vector<Expected> texts = read_expected(folder);
  ASSERT_FALSE(texts.empty());
  const Model model = load(folder, ComputeType::kF32);
  const auto layers = static_cast<std::int64_t>(model.info().layers.size());
  // A window of 5 folds several times in 37 tokens, out of step with the chunks.
  const auto ours = Feeder(model, decode, 5, texts).run(path);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Verdict verdict = judge(texts[i], ours[i], layers);
    EXPECT_TRUE(verdict.accepted()) << "text " << i << ": " << verdict.text();
    testing::Test::RecordProperty("error_in_tolerances_" + std::to_string(i),
                                  std::to_string(verdict.worst));
  }

  // The broken twin: one weight of one norm, off by a hundredth.
  const std::string broken = scratch("broken_" + name);
  bool first = true;
  write_changed(folder, broken, tensor_with(folder, family().first_norm), [&first](float value) {
    const float changed = first ? value * 1.01F : value;
    first = false;
    return changed;
  });
  const auto other = Feeder(load(broken, ComputeType::kF32), decode, 5, texts).run(path);
  EXPECT_TRUE(any_rejected(texts, other, layers)) << "a wrong weight went unnoticed";
}

// Every tensor of every fixture takes part: scaled by a hundredth it is noticed. Those that are
// left out do not.
void every_tensor_matters() {
  for (const std::string& name : fixture_names(family().folder)) {
    const std::string folder = fixture_folder(family().folder, name);
    const std::vector<Expected> texts = read_expected(folder);
    const std::string broken = scratch("scaled_" + name);
    std::set<std::string> seen;  // of parts that are left out one tensor each is enough
    for (const std::string& tensor : tensor_names(folder)) {
      const auto& parts = family().left_out;
      const auto part = std::find_if(parts.begin(), parts.end(), [&](const std::string& start) {
        return tensor.starts_with(start);
      });
      const bool left_out = part != parts.end();
      if (left_out && !seen.insert(*part).second) continue;
      write_changed(folder, broken, tensor, [](float value) { return value * 1.01F + 0.001F; });
      const Model model = load(broken, ComputeType::kF32);
      const auto ours = Feeder(model, DecodeMode::kReplay, 5, texts).run(Path::kTokens);
      const auto layers = static_cast<std::int64_t>(model.info().layers.size());
      EXPECT_NE(any_rejected(texts, ours, layers), left_out)
          << name << ": " << tensor
          << (left_out ? " changes the logits" : " does not change the logits");
    }
  }
}

// Products in bf16 move the logits as roundings of all weights do; a norm that is off by half moves
// them further.
void stay_within_rounding() {
  for (const std::string& name : fixture_names(family().folder)) {
    const std::string folder = fixture_folder(family().folder, name);
    const std::vector<Expected> texts = read_expected(folder);
    // A product in bf16 rounds both its operands, weights and inputs, by up to 2^-8 each. What is
    // measured is weights moved by as much, so that to first order both together are twice that.
    const double tolerance = 2.0 * bf16_sensitivity(folder, scratch("perturbed_" + name), texts);
    const Model model = load(folder, ComputeType::kBF16);
    for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
      for (const Path path : {Path::kOneChunk, Path::kTokens}) {
        const auto ours = Feeder(model, decode, 5, texts).run(path);
        for (std::size_t i = 0; i < texts.size(); ++i) {
          const Verdict verdict = judge_within(texts[i], ours[i], tolerance);
          EXPECT_TRUE(verdict.accepted()) << name << ", text " << i << ": " << verdict.text();
        }
      }
    }
    const std::string broken = scratch("bf16_" + name);
    write_changed(folder, broken, tensor_with(folder, family().inner_norm),
                  [](float value) { return value * 1.5F; });
    const auto ours =
        Feeder(load(broken, ComputeType::kBF16), DecodeMode::kReplay, 5, texts).run(Path::kTokens);
    const Verdict verdict = judge_within(texts[0], ours[0], tolerance);
    EXPECT_FALSE(verdict.accepted()) << name << ": " << verdict.text();
  }
}

class FamilyTest : public testing::Test {
 public:
  explicit FamilyTest(std::function<void()> body) : body_(std::move(body)) {}

 private:
  void TestBody() override { body_(); }
  std::function<void()> body_;
};

// Named here and not by GoogleTest's macros, so that a report tells one family from another.
void add(const std::string& suite, const std::string& name, const std::function<void()>& body) {
  testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [body] { return std::make_unique<FamilyTest>(body).release(); });
}

bool add_all() {
  const std::string suite = family().suite;
  const std::vector<std::string> names = fixture_names(family().folder);
  add(suite + "Fixtures", "AreThere",
      [count = names.size()] { EXPECT_GE(count, family().fixtures); });
  add(suite + "Twins", "EveryTensorMatters", every_tensor_matters);
  add(suite + "Bf16", "StayWithinRounding", stay_within_rounding);
  for (const std::string& name : names) {
    for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
      for (const Path path :
           {Path::kOneChunk, Path::kOddChunks, Path::kTokens, Path::kDrafts, Path::kMixed}) {
        const std::string mode(decode_mode_name(decode));
        add("Fixtures/" + suite, "MatchTransformers/" + name + "_" + mode + "_" + path_name(path),
            [name, decode, path] { match_transformers(name, decode, path); });
      }
    }
  }
  return true;
}

const bool kAdded = add_all();

}  // namespace
}  // namespace replayssm::logits
