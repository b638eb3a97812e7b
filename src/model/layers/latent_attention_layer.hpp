// Multi-head latent attention without positional encoding, in absorbed form.
//
// With the factors of kv_b, W_k and W_v of a head: the key of a position is [W_k c | r] and its
// value W_v c, where the row (c, r) of kv_rank + rope_dim numbers is all that is remembered of a
// position. A score q_nope . W_k c + q_rope . r is (W_k^T q_nope, q_rope) . (c, r), and the sum of
// the values is W_v times the sum of the rows c: so queries are taken into the space of the rows,
// all heads share one key, and no key or value of a head is ever formed (DeepSeek-V2, arXiv
// 2405.04434, section 2.1.2).
#pragma once

#include <memory>
#include <string>

#include "model/config.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {

// Tensors: prefix + q_proj.weight (with q_rank q_a_proj.weight, q_a_layernorm.weight,
// q_b_proj.weight), kv_a_proj_with_mqa.weight, kv_a_layernorm.weight, kv_b_proj.weight,
// o_proj.weight.
[[nodiscard]] std::unique_ptr<Sublayer> load_latent_attention(const ModelConfig& config,
                                                              const std::string& prefix,
                                                              WeightSource& source);

}  // namespace replayssm::model
