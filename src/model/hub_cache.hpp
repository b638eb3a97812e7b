// Turns what a user gives as a model into a folder: a path, or an organisation and name that is
// looked up in the local Hugging Face cache. Nothing is downloaded and no environment is read here.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "replayssm/status.hpp"

namespace replayssm::model {

// The variables that place the cache, as the caller read them; empty where unset.
struct HubEnvironment {
  std::string hf_hub_cache;    // HF_HUB_CACHE
  std::string hf_home;         // HF_HOME
  std::string xdg_cache_home;  // XDG_CACHE_HOME
  std::string home;            // HOME
};

// The cache folder by the rules of huggingface_hub: HF_HUB_CACHE, else HF_HOME/hub, else
// XDG_CACHE_HOME/huggingface/hub, else HOME/.cache/huggingface/hub; empty where nothing is set.
[[nodiscard]] std::filesystem::path hub_cache_root(const HubEnvironment& environment);

// `model` is an existing folder, or "org/name" whose main revision lies in `cache_root` as
// models--org--name/snapshots/<the text of refs/main>. An existing folder wins. kNotFound with the
// command that would fetch the model where it is not there, kInvalidArgument where `model` is a
// file or neither form.
[[nodiscard]] Result<std::filesystem::path> resolve_model(std::string_view model,
                                                          const std::filesystem::path& cache_root);

}  // namespace replayssm::model
