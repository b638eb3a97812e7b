// Logits of qwen3_5 against transformers (tests/logits/suite.hpp).
#include "tests/logits/suite.hpp"

namespace replayssm::logits {

const Family& family() {
  static const Family kFamily = {"Qwen35Logits",
                                 "qwen3_5",
                                 5,
                                 "layers.0.input_layernorm.weight",
                                 "linear_attn.norm.weight",
                                 {"model.visual.", "mtp."}};
  return kFamily;
}

}  // namespace replayssm::logits
