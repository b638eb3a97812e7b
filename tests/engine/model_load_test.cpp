// Loading: both prefixes, every kind of damage named, parts that are not supported refused by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "model/layers/families.hpp"
#include "model/layers/network.hpp"
#include "model/layers/weight_source.hpp"
#include "replayssm/engine.hpp"
#include "replayssm/model.hpp"
#include "tests/engine/random_model.hpp"

namespace replayssm {
namespace {

using testing_models::RandomModel;
using testing_models::Tensor;
using testing_models::write_model;

Result<Model> load(const std::string& folder, std::vector<std::string>* log = nullptr) {
  LoadOptions options;
  options.threads = 1;
  if (log != nullptr)
    options.log = [log](LogLevel, std::string_view line) { log->emplace_back(line); };
  return Model::load(folder, options);
}

void expect_refused(const RandomModel& model, StatusCode code,
                    const std::vector<std::string>& parts) {
  const std::string folder = write_model("refused", model);
  for (const Status& status : {load(folder).status(), inspect_model(folder).status()}) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << status.message() << " lacks " << part;
    }
  }
}

std::vector<std::int32_t> greedy(const std::string& folder) {
  const Result<Model> model = load(folder);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  if (!model.ok()) return {};
  EngineOptions options;
  options.threads = 1;
  auto engine = Engine::create(*model, options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  if (!engine.ok()) return {};
  Request request;
  request.prompt = {1, 5, 9, 30};
  request.max_new_tokens = 24;
  const auto generation = engine->generate({&request, 1});
  EXPECT_TRUE(generation.ok()) << generation.status().to_string();
  return generation.ok() ? generation->sequences[0].tokens : std::vector<std::int32_t>{};
}

TEST(ModelLoad, BothPrefixesAndTypesGiveTheSameModel) {
  RandomModel model;
  const auto expected = greedy(write_model("backbone", model));
  EXPECT_EQ(expected.size(), 24U);
  model.prefix = "model.";
  EXPECT_EQ(greedy(write_model("model", model)), expected);
  model.dtype = "BF16";
  EXPECT_EQ(greedy(write_model("bf16", model)), expected);
  model.seed = 2;  // the broken twin
  EXPECT_NE(greedy(write_model("other", model)), expected);
}

TEST(ModelLoad, TheSingularSpellingOfTheEmbeddings) {
  RandomModel model;
  const auto expected = greedy(write_model("plural", model));
  model.damage = [](std::vector<Tensor>& tensors) {
    tensors[0].name = "backbone.embedding.weight";
  };
  EXPECT_EQ(greedy(write_model("singular", model)), expected);
}

TEST(ModelLoad, TiedEmbeddingsNeedNoHeadAndIgnoreAStoredOne) {
  RandomModel model;
  model.tied = true;
  const auto expected = greedy(write_model("tied", model));
  model.damage = [](std::vector<Tensor>& tensors) {
    Tensor head = tensors[0];
    head.name = "lm_head.weight";
    tensors.push_back(head);
  };
  EXPECT_EQ(greedy(write_model("tied_twice", model)), expected);
}

TEST(ModelLoad, EveryMissingTensorIsNamed) {
  RandomModel model;
  std::vector<std::string> names;
  model.damage = [&names](std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) names.push_back(tensor.name);
  };
  (void)write_model("names", model);
  ASSERT_GT(names.size(), 20U);
  for (std::size_t i = 0; i < names.size(); ++i) {
    model.damage = [i](std::vector<Tensor>& tensors) {
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    };
    expect_refused(model, StatusCode::kNotFound, {names[i], "missing"});
  }
}

TEST(ModelLoad, AnExtraTensorIsNamed) {
  RandomModel model;
  model.damage = [](std::vector<Tensor>& tensors) {
    tensors.push_back(Tensor{"backbone.layers.0.mixer.surprise", "F32", {2}, {1.0F, 2.0F}});
  };
  expect_refused(model, StatusCode::kInvalidArgument, {"backbone.layers.0.mixer.surprise", "[2]"});
}

TEST(ModelLoad, AMisshapedTensorIsNamedWithBothShapes) {
  RandomModel model;
  model.damage = [](std::vector<Tensor>& tensors) {
    tensors[1].shape = {tensors[1].shape[0] - 1};
    tensors[1].values.pop_back();
  };
  expect_refused(model, StatusCode::kInvalidArgument,
                 {"backbone.layers.0.norm.weight", "[39]", "[40]"});
}

TEST(ModelLoad, ATypeThatIsNotSupportedIsNamed) {
  RandomModel model;
  model.damage = [](std::vector<Tensor>& tensors) { tensors[1].dtype = "F16"; };
  expect_refused(model, StatusCode::kUnsupported, {"backbone.layers.0.norm.weight", "F16", "BF16"});
}

TEST(ModelLoad, ThePredictionHeadIsLeftOutWithANotice) {
  RandomModel model;
  const auto expected = greedy(write_model("plain", model));
  model.damage = [](std::vector<Tensor>& tensors) {
    tensors.push_back(Tensor{"mtp.layers.0.norm.weight", "F32", {2}, {1.0F, 2.0F}});
  };
  const std::string folder = write_model("mtp", model);
  std::vector<std::string> log;
  ASSERT_TRUE(load(folder, &log).ok());
  bool noticed = false;
  for (const std::string& line : log) noticed = noticed || line.find("mtp") != std::string::npos;
  EXPECT_TRUE(noticed);
  EXPECT_EQ(greedy(folder), expected);
}

TEST(ModelLoad, PartsThatAreNotSupportedAreNamed) {
  RandomModel model;
  model.pattern = "ME-";
  expect_refused(model, StatusCode::kUnsupported, {"MoE"});
  model = RandomModel{};
  model.pattern = "*-*-";
  expect_refused(model, StatusCode::kUnsupported, {"recurrent"});
  model = RandomModel{};
  model.mamba_head_dim = 12;  // heads are multiples of 8
  expect_refused(model, StatusCode::kUnsupported, {"12", "8"});
  model = RandomModel{};
  model.extra_config = ", \"attention_bias\": true";
  expect_refused(model, StatusCode::kUnsupported, {"attention_bias"});
}

TEST(ModelLoad, NoFolderAndNoWeights) {
  EXPECT_EQ(load("/nonexistent").status().code(), StatusCode::kNotFound);
  const std::string folder = write_model("no_weights", RandomModel{});
  std::filesystem::remove(folder + "/model.safetensors");
  EXPECT_EQ(load(folder).status().code(), StatusCode::kNotFound);
  const auto info = inspect_model(folder);  // a configuration is enough to plan with
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_FALSE(info->has_weights);
  EXPECT_EQ(info->weight_bytes, 2 * info->parameters);
}

TEST(ModelLoad, InfoCountsWhatTheFileHolds) {
  RandomModel model;
  const std::string folder = write_model("counted", model);
  const auto info = inspect_model(folder);
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->count(LayerKind::kMamba2), 3);
  EXPECT_EQ(info->count(LayerKind::kAttention), 1);
  EXPECT_EQ(info->count(LayerKind::kMlp), 2);
  EXPECT_TRUE(info->has_weights);
  EXPECT_EQ(info->weight_bytes, 4 * info->parameters);
  EXPECT_EQ(info->weight_dtype, DType::kF32);
  EXPECT_EQ(info->compute, ComputeType::kF32);
  EXPECT_EQ(info->kv_bytes_per_token(), 2 * 2 * 12 * 4);
  EXPECT_EQ(info->state_bytes(), 3 * 4 * 16 * 16 * 4);
  EXPECT_EQ(info->conv_bytes(), 3 * 3 * (64 + 2 * 2 * 16) * 4);
  EXPECT_EQ(info->max_positions, 512);
}

TEST(ModelLoad, StopTokensComeFromTheGenerationConfig) {
  RandomModel model;
  model.extra_config = ", \"eos_token_id\": 3";
  const auto config_only = load(write_model("eos", model));
  ASSERT_TRUE(config_only.ok());
  EXPECT_EQ(std::vector<std::int32_t>(config_only->stop_tokens().begin(),
                                      config_only->stop_tokens().end()),
            (std::vector<std::int32_t>{3}));
  model.generation_config = R"({"eos_token_id": [4, 6]})";
  const auto both = load(write_model("eos", model));
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(std::vector<std::int32_t>(both->stop_tokens().begin(), both->stop_tokens().end()),
            (std::vector<std::int32_t>{4, 6}));
}

TEST(ModelLoad, WithoutATokenizerTextsAreRefusedAndTokensRun) {
  const auto model = load(write_model("no_tokenizer", RandomModel{}));
  ASSERT_TRUE(model.ok());
  EXPECT_FALSE(model->has_tokenizer());
  EXPECT_EQ(model->encode("a").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(model->decode(std::vector<std::int32_t>{1}).status().code(), StatusCode::kNotFound);
}

TEST(LocateModel, TakesFoldersAndNamesTheFetchCommand) {
  const std::string folder = write_model("located", RandomModel{});
  const auto found = locate_model(folder, "/nonexistent");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, folder);
  const auto absent = locate_model("some/name", REPLAYSSM_TEST_TMP);
  EXPECT_EQ(absent.status().code(), StatusCode::kNotFound);
  EXPECT_NE(absent.status().message().find("some/name"), std::string::npos);
}

// No config.json gives a family such layers; a reader that did would be at fault, not its file.
TEST(ModelLoad, KindsOfAnotherFamilyAreAnInternalFault) {
  const std::pair<model::ModelFamily, LayerKind> pairs[] = {
      {model::ModelFamily::kNemotronH, LayerKind::kKda},
      {model::ModelFamily::kQwen35, LayerKind::kMamba2},
      {model::ModelFamily::kKimiLinear, LayerKind::kAttention}};
  for (const auto& [family, kind] : pairs) {
    model::ModelConfig config;
    config.family = family;
    config.vocab_size = 8;
    config.hidden_size = 8;
    config.layers = {kind};
    model::WeightSource source;
    EXPECT_EQ(model::family_of(family).load(config, 0, source).layer, nullptr);
    EXPECT_EQ(source.status().code(), StatusCode::kInternal);
    EXPECT_NE(source.status().message().find(layer_kind_name(kind)), std::string::npos)
        << source.status().message();
    EXPECT_TRUE(model::outline(config).recurrent.empty());
  }
}

}  // namespace
}  // namespace replayssm
