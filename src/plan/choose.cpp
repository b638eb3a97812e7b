// Choosing an implementation.
#include "plan/choose.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace replayssm {
namespace {

template <typename T, typename Name>
std::string list(const std::vector<T>& values, Name name) {
  std::string text;
  for (const T& value : values) text += concat(text.empty() ? "" : ", ", name(value));
  return text;
}

template <typename T>
bool holds(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

std::string why_not(const Problem& problem, const ImplementationInfo& info) {
  const CacheConfig& config = *problem.config;
  if (!config.device.empty() && info.device != config.device)
    return concat("runs on device ", info.device);
  if (config.device.empty() && config.implementation.empty() && info.device != "cpu")
    return concat("runs on device ", info.device, ", which was not asked for");
  if (!info.available) return concat("not available here: ", info.unavailable_because);
  if (info.decode != config.decode) return concat("decodes ", decode_mode_name(info.decode));
  if (!holds(info.formats, config.format)) {
    return concat("format ", state_format_name(config.format),
                  " given, supported: ", list(info.formats, state_format_name));
  }
  if (!holds(info.activations, config.activations)) {
    return concat("activations ", dtype_name(config.activations),
                  " given, supported: ", list(info.activations, dtype_name));
  }
  for (const LayerShape& layer : config.layers) {
    if (!holds(info.rules, layer.rule)) {
      return concat("rule ", rule_name(layer.rule),
                    " given, supported: ", list(info.rules, rule_name));
    }
  }
  return {};
}

Result<Plan> choose(const Problem& problem, std::span<const Implementation> implementations) {
  const CacheConfig& config = *problem.config;
  std::string refusals;
  Plan plan;
  bool found = false;
  bool named = false;
  for (std::size_t i = 0; i < implementations.size(); ++i) {
    const ImplementationInfo& info = implementations[i].info;
    if (!config.implementation.empty() && info.name != config.implementation) continue;
    named = true;
    const std::string reason = why_not(problem, info);
    if (!reason.empty()) {
      refusals += concat(refusals.empty() ? "" : "; ", info.name, ": ", reason);
      continue;
    }
    if (!found || info.priority > implementations[plan.implementation].info.priority)
      plan.implementation = i;
    found = true;
  }
  if (!named) {
    std::string names;
    for (const Implementation& implementation : implementations) {
      names += concat(names.empty() ? "" : ", ", implementation.info.name);
    }
    return error(StatusCode::kUnsupported, "no implementation is named ", config.implementation,
                 "; this build has: ", names);
  }
  if (!found) {
    return error(StatusCode::kUnsupported, "no implementation takes this cache: ", refusals);
  }
  const ImplementationInfo& info = implementations[plan.implementation].info;
  plan.why = concat(
      info.name, ": ",
      config.implementation.empty() ? "highest priority that fits" : "named by the caller",
      " (decode ", decode_mode_name(config.decode), ", format ", state_format_name(config.format),
      ", activations ", dtype_name(config.activations), ")");
  return plan;
}

}  // namespace replayssm
