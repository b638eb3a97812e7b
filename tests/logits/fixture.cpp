// See fixture.hpp.
#include "tests/logits/fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <system_error>

#include "model/layers/bf16.hpp"
#include "model/safetensors.hpp"

namespace replayssm::logits {

namespace fs = std::filesystem;

std::string fixture_folder(const std::string& family, const std::string& name) {
  return std::string(REPLAYSSM_SOURCE_DIR) + "/tests/fixtures/" + family + "/" + name;
}

std::vector<std::string> fixture_names(const std::string& family) {
  std::vector<std::string> names;
  std::error_code none;  // a folder that is not there has no fixtures
  for (const auto& entry : fs::directory_iterator(fixture_folder(family, ""), none)) {
    if (fs::exists(entry.path() / "expected.safetensors"))
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Expected> read_expected(const std::string& folder) {
  std::vector<Expected> texts;
  const auto file = model::Checkpoint::open_file(folder + "/expected.safetensors");
  if (!file.ok()) {
    ADD_FAILURE() << file.status().to_string();
    return texts;
  }
  const model::TensorEntry* ids = file->find("input_ids");
  const model::TensorEntry* exact = file->find("logits_f64");
  const model::TensorEntry* reference = file->find("prefill_logits");
  if (ids == nullptr || exact == nullptr || reference == nullptr || exact->shape.size() != 3 ||
      exact->dtype_name != "F64" || ids->dtype_name != "I64" || reference->dtype_name != "F32") {
    ADD_FAILURE() << folder << ": expected.safetensors is not as this test reads it";
    return texts;
  }
  const auto batch = static_cast<std::size_t>(exact->shape[0]);
  const auto tokens = static_cast<std::size_t>(exact->shape[1]);
  const auto vocab = static_cast<std::size_t>(exact->shape[2]);
  for (std::size_t b = 0; b < batch; ++b) {
    Expected text;
    text.vocab = static_cast<std::int64_t>(vocab);
    std::vector<std::int64_t> wide(tokens);
    std::memcpy(wide.data(), ids->bytes.data() + b * tokens * 8, tokens * 8);
    text.tokens.assign(wide.begin(), wide.end());
    text.exact.resize(tokens * vocab);
    std::memcpy(text.exact.data(), exact->bytes.data() + b * tokens * vocab * 8,
                tokens * vocab * 8);
    text.reference.resize(tokens * vocab);
    std::memcpy(text.reference.data(), reference->bytes.data() + b * tokens * vocab * 4,
                tokens * vocab * 4);
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<std::string> tensor_names(const std::string& folder) {
  std::vector<std::string> names;
  const auto file = model::Checkpoint::open(folder);
  if (!file.ok()) {
    ADD_FAILURE() << file.status().to_string();
    return names;
  }
  for (const model::TensorEntry& entry : file->tensors()) names.push_back(entry.name);
  return names;
}

void write_changed(const std::string& folder, const std::string& target, const std::string& tensor,
                   const std::function<float(float)>& change) {
  fs::remove_all(target);
  fs::create_directories(target);
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (fs::exists(fs::path(folder) / name))
      fs::copy_file(fs::path(folder) / name, fs::path(target) / name);
  }
  std::ifstream in(folder + "/model.safetensors", std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto entries =
      model::parse_safetensors(std::as_bytes(std::span<const char>(bytes)), "model.safetensors");
  ASSERT_TRUE(entries.ok()) << entries.status().to_string();
  bool found = false;
  for (const model::TensorEntry& entry : *entries) {
    if (!tensor.empty() && entry.name != tensor) continue;
    found = true;
    char* data = bytes.data() + (reinterpret_cast<const char*>(entry.bytes.data()) - bytes.data());
    if (*entry.dtype == DType::kF32) {
      for (std::size_t i = 0; i < entry.bytes.size(); i += 4) {
        float value = 0.0F;
        std::memcpy(&value, data + i, 4);
        value = change(value);
        std::memcpy(data + i, &value, 4);
      }
    } else {
      for (std::size_t i = 0; i < entry.bytes.size(); i += 2) {
        std::uint16_t half = 0;
        std::memcpy(&half, data + i, 2);
        half = model::f32_to_bf16(change(model::bf16_to_f32(half)));
        std::memcpy(data + i, &half, 2);
      }
    }
  }
  ASSERT_TRUE(found) << tensor;
  std::ofstream out(target + "/model.safetensors", std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good());
}

std::string Verdict::text() const {
  std::ostringstream out;
  out << "worst: token " << token << ", logit " << entry << ": ours " << ours << ", exact " << exact
      << ", tolerance " << tolerance << ", error " << worst << " tolerances";
  return out.str();
}

namespace {

Verdict judge_by(const Expected& expected, const std::vector<float>& ours,
                 const std::vector<double>& tolerances) {
  Verdict verdict;
  if (ours.size() != expected.exact.size()) {
    verdict.worst = std::numeric_limits<double>::infinity();
    return verdict;
  }
  const auto vocab = static_cast<std::size_t>(expected.vocab);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double tolerance = tolerances[i / vocab];
    double error = std::fabs(static_cast<double>(ours[i]) - expected.exact[i]) / tolerance;
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error <= verdict.worst) continue;
    verdict.worst = error;
    verdict.token = static_cast<std::int64_t>(i / vocab);
    verdict.entry = static_cast<std::int64_t>(i % vocab);
    verdict.ours = ours[i];
    verdict.exact = expected.exact[i];
    verdict.tolerance = tolerance;
  }
  return verdict;
}

}  // namespace

Verdict judge(const Expected& expected, const std::vector<float>& ours, std::int64_t layers) {
  double reference_error = 0.0;
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    reference_error =
        std::max(reference_error, std::fabs(expected.reference[i] - expected.exact[i]));
  }
  const double rounding = 8.0 * 0x1.0p-24 * std::sqrt(2.0 * static_cast<double>(layers));
  const auto vocab = static_cast<std::size_t>(expected.vocab);
  std::vector<double> tolerances;
  for (std::size_t token = 0; token < expected.tokens.size(); ++token) {
    double squares = 0.0;
    for (std::size_t v = 0; v < vocab; ++v)
      squares += std::pow(expected.exact[token * vocab + v], 2);
    tolerances.push_back(4.0 * reference_error +
                         rounding * std::sqrt(squares / static_cast<double>(vocab)));
  }
  return judge_by(expected, ours, tolerances);
}

Verdict judge_within(const Expected& expected, const std::vector<float>& ours, double tolerance) {
  return judge_by(expected, ours, std::vector<double>(expected.tokens.size(), tolerance));
}

}  // namespace replayssm::logits
