// Cost model: bytes that decoding moves, counted from the sizes of what each operation must read
// and write once.
#include "plan/traffic.hpp"

#include <algorithm>

#include "core/layout.hpp"

namespace replayssm {

double traffic_per_token(const CacheConfig& config, double step_tokens, double accepted_tokens) {
  double per_step = 0.0;
  for (const LayerShape& shape : config.layers) {
    const auto state = static_cast<double>(state_elements(shape)) * 4.0;
    if (config.decode == DecodeMode::kConventional) {
      // One state read, one written a token.
      per_step += state * (1.0 + step_tokens);
      continue;
    }
    const auto record = static_cast<double>(record_bytes(shape, config.activations, config.update));
    const double window = config.window;
    // A step reads the checkpoint and the committed records and appends its own. Fills cycle: every
    // W accepted tokens a fold takes W records away, so the mean fill a step meets is about (W - 1)
    // / 2.
    const double fill = (window - 1.0) / 2.0;
    per_step += state + record * (fill + step_tokens);
    // A fold reads W records and the state and writes the state; steps between folds: W / accepted.
    per_step += (2.0 * state + window * record) * accepted_tokens / window;
  }
  return per_step / std::max(accepted_tokens, 1e-9);
}

}  // namespace replayssm
