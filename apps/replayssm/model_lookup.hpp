// From what --model says to a folder on this machine.
#pragma once

#include <string>

#include "replayssm/status.hpp"

namespace replayssm::app {

// The "hub" folder of the Hugging Face cache: HF_HUB_CACHE, else HF_HOME/hub, else
// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. The library takes it as an
// argument; reading the environment is the program's part.
[[nodiscard]] std::string hub_folder();

// A folder as it is, or org/name looked up in hub_folder(). kNotFound says what to do.
[[nodiscard]] Result<std::string> find_model(const std::string& model);

}  // namespace replayssm::app
