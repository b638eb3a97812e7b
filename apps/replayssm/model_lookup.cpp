// From what --model says to a folder on this machine.
#include "model_lookup.hpp"

#include <cstdlib>

#include "replayssm/model.hpp"

namespace replayssm::app {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

std::string hub_folder() {
  if (std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/huggingface/hub";
  }
  return environment("HOME") + "/.cache/huggingface/hub";
}

Result<std::string> find_model(const std::string& model) {
  Result<std::string> folder = locate_model(model, hub_folder());
  if (folder.ok()) return folder;
  // Whatever is wrong with the name, to a user the model is not there.
  return Status(StatusCode::kNotFound, folder.status().message());
}

}  // namespace replayssm::app
