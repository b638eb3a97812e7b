// Look-up in the folder layout of huggingface_hub.
#include "model/hub_cache.hpp"

#include <algorithm>
#include <system_error>

#include "model/mapped_file.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::size_t kMaxNameBytes = 96;  // the hub's limit for "org/name"
constexpr std::size_t kMaxRefBytes = 256;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

// The hub's rules for one part of a name; they also keep the part inside its folder.
bool is_name_part(std::string_view part) {
  if (part.empty() || part.front() == '.' || part.front() == '-' || part.back() == '.' ||
      part.back() == '-') {
    return false;
  }
  return std::all_of(part.begin(), part.end(), is_name_character) &&
         part.find("..") == std::string_view::npos && part.find("--") == std::string_view::npos;
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// The revision that refs/main names; empty where there is none or it is no plain name.
std::string read_revision(const std::filesystem::path& repository) {
  const Result<std::string> text = read_text_file(repository / "refs" / "main", kMaxRefBytes);
  if (!text.ok()) return {};
  std::string_view revision = *text;
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!revision.empty() && is_space(revision.back())) revision.remove_suffix(1);
  return is_name_part(revision) ? std::string(revision) : std::string();
}

}  // namespace

std::filesystem::path hub_cache_root(const HubEnvironment& environment) {
  using std::filesystem::path;
  if (!environment.hf_hub_cache.empty()) return path(environment.hf_hub_cache);
  if (!environment.hf_home.empty()) return path(environment.hf_home) / "hub";
  if (!environment.xdg_cache_home.empty()) {
    return path(environment.xdg_cache_home) / "huggingface" / "hub";
  }
  if (!environment.home.empty()) return path(environment.home) / ".cache" / "huggingface" / "hub";
  return {};
}

Result<std::filesystem::path> resolve_model(std::string_view model,
                                            const std::filesystem::path& cache_root) {
  const std::string shown = path_in_quotes(model);
  if (model.empty() || model.find('\0') != std::string_view::npos) {
    return Status(StatusCode::kInvalidArgument,
                  "model " + shown + ": a folder or org/name is required");
  }
  const std::filesystem::path folder{std::string(model)};
  if (is_folder(folder)) return folder;
  std::error_code ignored;
  if (std::filesystem::exists(folder, ignored)) {
    return Status(StatusCode::kInvalidArgument,
                  "model " + shown + " is a file; give the folder that holds config.json");
  }

  const std::size_t slash = model.find('/');
  const std::string_view organisation = model.substr(0, slash);
  const std::string_view name =
      slash == std::string_view::npos ? std::string_view() : model.substr(slash + 1);
  if (model.size() > kMaxNameBytes || !is_name_part(organisation) || !is_name_part(name)) {
    return Status(StatusCode::kNotFound,
                  "model " + shown + ": no such folder, and not of the form org/name");
  }
  const std::string fetch = "fetch it with: hf download " + std::string(model);
  if (cache_root.empty()) {
    return Status(StatusCode::kNotFound, "model " + shown +
                                             ": no such folder, and no cache folder is known; " +
                                             fetch + " --local-dir " + std::string(name));
  }
  const std::filesystem::path repository =
      cache_root / ("models--" + std::string(organisation) + "--" + std::string(name));
  const std::string revision = read_revision(repository);
  const std::filesystem::path snapshot = repository / "snapshots" / revision;
  if (revision.empty() || !is_folder(snapshot)) {
    return Status(StatusCode::kNotFound, "model " + shown +
                                             " is neither a folder nor in the cache " +
                                             path_in_quotes(cache_root.native()) + "; " + fetch);
  }
  if (!std::filesystem::exists(snapshot / "config.json", ignored)) {
    return Status(StatusCode::kNotFound, "model " + shown + " is only in part in the cache " +
                                             path_in_quotes(cache_root.native()) +
                                             " (no config.json); " + fetch);
  }
  return snapshot;
}

}  // namespace replayssm::model
