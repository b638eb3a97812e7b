// A model's folder from a path or from the layout of the Hugging Face cache.
#include "model/hub_cache.hpp"

#include <gtest/gtest.h>

#include "tests/model/temp_folder.hpp"

namespace replayssm::model {
namespace {

TEST(HubCache, RootFollowsTheVariables) {
  HubEnvironment environment;
  EXPECT_EQ(hub_cache_root(environment), "");
  environment.home = "/h";
  EXPECT_EQ(hub_cache_root(environment), "/h/.cache/huggingface/hub");
  environment.xdg_cache_home = "/x";
  EXPECT_EQ(hub_cache_root(environment), "/x/huggingface/hub");
  environment.hf_home = "/hf";
  EXPECT_EQ(hub_cache_root(environment), "/hf/hub");
  environment.hf_hub_cache = "/cache";
  EXPECT_EQ(hub_cache_root(environment), "/cache");
}

TEST(HubCache, FindsTheMainRevision) {
  TempFolder root("cache");
  root.write("models--org--a.b-c/refs/main", "0123abc\n");
  root.write("models--org--a.b-c/snapshots/0123abc/config.json", "{}");
  root.write("models--org--a.b-c/snapshots/other/config.json", "{}");
  const auto found = resolve_model("org/a.b-c", root.path());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, root.path() / "models--org--a.b-c/snapshots/0123abc");
}

TEST(HubCache, AbsentModelsSayHowToFetchThem) {
  TempFolder root("absent");
  root.write("models--org--no-snapshot/refs/main", "0123");
  root.write("models--org--part/refs/main", "0123");
  root.write("models--org--part/snapshots/0123/tokenizer.json", "{}");
  root.write("models--org--no-ref/snapshots/0123/config.json", "{}");
  // A reference that would lead out of the folder.
  root.write("models--org--evil/refs/main", "../../secret");
  root.write("models--org--evil/snapshots/x/config.json", "{}");
  root.write("secret/config.json", "{}");
  for (const char* model :
       {"org/absent", "org/no-snapshot", "org/part", "org/no-ref", "org/evil"}) {
    const auto found = resolve_model(model, root.path());
    ASSERT_FALSE(found.ok()) << model;
    EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
    EXPECT_NE(found.status().message().find("hf download " + std::string(model)), std::string::npos)
        << found.status().message();
  }
  const auto no_cache = resolve_model("org/absent", "");
  ASSERT_FALSE(no_cache.ok());
  EXPECT_NE(no_cache.status().message().find("hf download org/absent --local-dir absent"),
            std::string::npos);
}

TEST(HubCache, FoldersGoFirstAndOtherThingsAreRefused) {
  TempFolder root("folders");
  root.write("org/model/config.json", "{}");
  root.write("file.gguf", "");
  const auto folder = resolve_model((root.path() / "org/model").native(), root.path());
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(*folder, root.path() / "org/model");
  const auto file = resolve_model((root.path() / "file.gguf").native(), root.path());
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(resolve_model("", root.path()).status().code(), StatusCode::kInvalidArgument);
  for (const char* model :
       {"absent", "../up/model", "org/../model", "a/b/c", "org/", "/name", "org/na me",
        "o--rg/name", "org/.hidden", "org/name\n", "-org/name", "~/models/x", "org/n;rm"}) {
    const auto found = resolve_model(model, root.path());
    ASSERT_FALSE(found.ok()) << model;
    EXPECT_EQ(found.status().code(), StatusCode::kNotFound) << model;
    EXPECT_EQ(found.status().message().find("hf download"), std::string::npos) << model;
    EXPECT_EQ(found.status().message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace replayssm::model
