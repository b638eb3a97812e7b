// Logits of nemotron_h against transformers (tests/logits/suite.hpp).
#include "tests/logits/suite.hpp"

namespace replayssm::logits {

const Family& family() {
  static const Family kFamily = {
      "NemotronHLogits", "nemotron_h", 5, "layers.0.norm.weight", "layers.0.mixer.norm.weight", {}};
  return kFamily;
}

}  // namespace replayssm::logits
